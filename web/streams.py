"""Standard output and standard error: what is written there, and who may be looking."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

STDOUT_DESCRIPTOR = 1


def write(pieces: Iterable[str]) -> None:
    """Write text to standard output as UTF-8, whatever the locale says: programs read it.

    Raises:
        OSError: it could not be written; :class:`BrokenPipeError` where nobody reads any more.
    """
    out = sys.stdout.buffer
    with output_named():
        try:
            out.writelines(piece.encode() for piece in pieces)
        finally:
            out.flush()  # here, where a full disk can be told, and before any failure is


@contextmanager
def output_named() -> Generator[None, None, None]:
    """Give an OSError from writing to standard output its name, in place of a file's."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
        raise


def write_error(text: str) -> None:
    """Write to standard error, if there is one that takes it."""
    if sys.stderr is None:  # started with it closed
        return
    rest = text.encode(sys.stderr.encoding, "backslashreplace")
    # Past Python's buffer: it would keep what could not be written, and change the exit code
    # when it cannot write it at the end either.
    with suppress(OSError):  # there is nowhere left to tell of it
        while rest:
            rest = rest[os.write(sys.stderr.fileno(), rest) :]


class ErrorText(io.TextIOBase):
    """Standard error as a text file that loses what it cannot write, and never raises."""

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] # as files have
        """What standard error can show, so that its users draw no more than that."""
        return "utf-8" if sys.stderr is None else sys.stderr.encoding

    def write(self, text: str, /) -> int:
        """Write ``text``, or lose it."""
        write_error(text)
        return len(text)


def output_is_terminal() -> bool:
    """Tell whether a person may be looking at standard output."""
    return sys.stdout is not None and sys.stdout.isatty()


def error_is_terminal() -> bool:
    """Tell whether a person may be looking at standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def printable(text: str, keep: str = "\n\t") -> str:
    """Return ``text`` with control characters escaped, save those to ``keep``.

    Text comes from models and files: on a terminal it must not move the cursor or retitle the
    window.
    """
    return "".join(
        character
        if character.isprintable() or character in keep or character == " "
        else character.encode("unicode_escape").decode()
        for character in text
    )
