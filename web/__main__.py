"""``python -m web`` is the command ``sessiond``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:2] == ["serve"]:
        # The imports take most of a start. Asked to stop during them, the Host has stopped
        # cleanly: nothing is open yet. Once it runs it takes the signals itself.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)
    else:
        # What a command has begun, a copy say, is taken back also where it is told to end.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)
    try:
        # In here, since an interrupt may come while the imports run.
        from web.cli import cli  # noqa: PLC0415

        cli(prog_name="sessiond")
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as a shell reports it


def _leave(_number: int, _frame: object) -> None:
    os._exit(0)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)  # as a shell reports it


if __name__ == "__main__":
    main()
