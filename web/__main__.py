"""``python -m web`` is the command ``sessiond``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        # In here, since an interrupt may come while the imports run.
        from web.cli import cli  # noqa: PLC0415

        cli(prog_name="sessiond")
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as a shell reports it


if __name__ == "__main__":
    main()
