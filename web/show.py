"""A session as it is shown: text for people, plain or styled, and JSON for programs. No file.

Each function yields pieces, so that a long session is not held twice.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TypeAlias

from actors import strict_json
from actors.codec import FORMAT_VERSION
from actors.transcript import AssistantEntry, FailureEntry, ToolEntry, UserEntry, entry_json
from web.streams import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from actors.snapshot import Snapshot
    from actors.transcript import Entry

Render: TypeAlias = "Callable[[Entry], str]"
"""Returns an entry as it is shown, its last line end included."""

INDENT = "    "
LEAST_WIDTH = 20

_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold yellow"}
_FAILURE_STYLE = "bold red"


# --- for programs -----------------------------------------------------------------------------


def session_document(snapshot: Snapshot) -> Iterator[str]:
    """Yield a session in pieces of one JSON document, in the form that HTTP answers it."""
    digest = "null" if snapshot.digest is None else f'"{snapshot.digest.hex()}"'
    yield (
        f'{{"session_id":{strict_json.quote(snapshot.session_id)},'
        f'"format_version":{FORMAT_VERSION},"last_sequence":{snapshot.last_sequence},'
        f'"digest":{digest},"events":'
    )
    yield from _array(wire.decode() for wire in snapshot.wires())
    yield ',"transcript":'
    yield from _array(wire.decode() for wire in snapshot.entry_wires())
    yield "}\n"


def _array(items: Iterator[str]) -> Iterator[str]:
    opening = "["
    for item in items:
        yield opening + item
        opening = ","
    yield "[]" if opening == "[" else "]"


def json_line(entry: Entry) -> str:
    """Return an entry as a line of JSON, in the form it has in the session's document."""
    return entry_json(entry) + "\n"


# --- for people -------------------------------------------------------------------------------


def plain_entry(entry: Entry) -> str:
    """Return an entry as text for people.

    It has a line of its own (sequence, kind, ids) and below it what was said, indented, so that
    nothing said can pass for another entry.
    """
    said = _said(entry)
    body = "".join(f"{INDENT}{line}\n" for line in said.split("\n")) if said else ""
    heading = printable(_heading(entry), keep="")
    return f"{entry.sequence} {entry.kind} {heading}\n{printable(body)}\n"


def styled_entries() -> Render:
    """Return what renders entries for the terminal: coloured, and wrapped to its width.

    Where ``NO_COLOR`` is set there are no colours. What was said is never taken for markup.
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    return lambda entry: _styled(console, entry)


def _styled(console: Console, entry: Entry) -> str:
    from rich.text import Text

    failed = isinstance(entry, FailureEntry) or (
        isinstance(entry, ToolEntry) and entry.error is not None
    )
    style = _FAILURE_STYLE if failed else _STYLES[entry.kind]
    heading = Text.assemble(
        (f"{entry.sequence} ", "dim"), (entry.kind, style), f" {printable(_heading(entry), '')}"
    )
    width = max(console.width - len(INDENT), LEAST_WIDTH)
    with console.capture() as captured:
        console.print(heading, overflow="fold")
        if said := _said(entry):
            for line in Text(printable(said)).wrap(console, width, overflow="fold"):
                console.print(Text.assemble(INDENT, line), overflow="ignore", no_wrap=True)
        console.print()
    return captured.get()


def shown_transcript(snapshot: Snapshot, render: Render) -> Iterator[str]:
    """Yield a session's transcript, an entry at a time, and at last what is unfinished."""
    yield from map(render, snapshot.transcript())
    if snapshot.open_turn is not None:
        yield f"{snapshot.open_turn.turn_id} is unfinished\n"


def _heading(entry: Entry) -> str:
    match entry:
        case UserEntry():
            return entry.turn_id
        case AssistantEntry():
            return f"{entry.step_id} ({entry.finish_reason})"
        case ToolEntry():
            return f"{entry.step_id} {entry.call_id}"
        case FailureEntry():
            return f"{entry.step_id} ({entry.code})"


def _said(entry: Entry) -> str:
    match entry:
        case UserEntry():
            return entry.text
        case AssistantEntry():
            calls = [f"calls {call.name}({call.arguments})  {call.id}" for call in entry.tool_calls]
            return "\n".join([entry.text, *calls] if entry.text else calls)
        case ToolEntry():
            return f"{entry.name}({entry.arguments})\n{_outcome(entry)}"
        case FailureEntry():
            return entry.message


def _outcome(entry: ToolEntry) -> str:
    if entry.error is not None:
        return f"error {entry.error.code}: {entry.error.message}"
    assert entry.result is not None
    result = entry.result.value()
    return result if isinstance(result, str) else entry.result.text
