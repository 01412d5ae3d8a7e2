"""How a command's ``--help`` ends: examples that can be copied, and its exit codes."""

from __future__ import annotations

from textwrap import dedent, indent

USAGE_ERROR = (2, "a usage error")


def epilog(examples: str, *exit_codes: tuple[int, str], done: str = "done") -> str:
    """Return the end of a help page: the examples, a line each, and what the exit codes mean."""
    codes = sorted([(0, done), USAGE_ERROR, *exit_codes])
    lines = "\n".join(f"{code:>5}  {meaning}" for code, meaning in codes)
    # A \b keeps click from joining the lines of the paragraph behind it.
    return f"\b\nExamples:\n{indent(dedent(examples).strip(), '  ')}\n\n\b\nExit codes:\n{lines}"
