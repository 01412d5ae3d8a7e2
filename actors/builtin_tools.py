"""The tools that a Host has by itself: ``clock``, and ``recall`` over its own session."""

from __future__ import annotations

import difflib
from contextlib import aclosing
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import trio

from actors import strict_json
from actors.history import result_content
from actors.tools import Tool
from actors.transcript import AssistantEntry, FailureEntry, ToolEntry, UserEntry
from actors.values import Json, ToolSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from actors.session_log import SessionLog
    from actors.strict_json import JsonValue
    from actors.transcript import Entry

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
"""In English, whatever the locale: a model reads them."""
_ZONE_LENGTH = 64

CLOCK = ToolSpec(
    "clock",
    "Tells the current date, time and weekday in a time zone. Use it whenever an answer depends"
    " on what time or day it is now.",
    Json.of(
        {
            "type": "object",
            "properties": {
                "zone": {
                    "type": "string",
                    "description": "An IANA time zone name such as Europe/Berlin,"
                    " America/New_York or Asia/Tokyo. UTC if left out.",
                    "maxLength": _ZONE_LENGTH,
                }
            },
            "additionalProperties": False,
        }
    ),
)

RECALL_DEFAULT_LIMIT = 10
RECALL_MAX_LIMIT = 50
RECALL_RESULT_BYTES = 16_000
"""The size of all hits together, as compact JSON."""
EXCERPT_LENGTH = 300
"""Characters of an excerpt, besides the marks where it was cut."""
_EXCERPT_LEAD = 80
"""Of these, characters before the hit."""
_QUERY_LENGTH = 200
"""Less than an excerpt has from its hit on: it shows the word that was found."""
_STRETCH_ENTRIES = 200
_STRETCH_CHARACTERS = 500_000
"""What is searched in one go, before other tasks have their turn."""

RECALL = ToolSpec(
    "recall",
    "Searches everything that was said and done earlier in this session: user messages, your own"
    " answers, tool calls with their results, and failures. Returns the newest matches first,"
    " each with its sequence number (a greater one is later), its kind (user, assistant, tool or"
    " failure) and an excerpt. `more` tells that there are older matches besides.",
    Json.of(
        {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "Words to look for, separated by spaces. An entry matches if"
                    " it contains all of them, in any order, also inside of longer words; upper"
                    " and lower case are alike. Few and rare words work best.",
                    "minLength": 1,
                    "maxLength": _QUERY_LENGTH,
                },
                "limit": {
                    "type": "integer",
                    "description": "How many matches to return at most;"
                    f" {RECALL_DEFAULT_LIMIT} if left out.",
                    "minimum": 1,
                    "maximum": RECALL_MAX_LIMIT,
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        }
    ),
)


# --- clock ----------------------------------------------------------------------------------


def _utc_now() -> datetime:
    return datetime.now(UTC)


def clock_tool(now: Callable[[], datetime] = _utc_now) -> Tool:
    """Return the tool ``clock``; ``now`` returns the time, with its time zone.

    Only names that the time zone database itself lists are looked up, so nothing that a model
    asks for leads to another file.
    """

    def tell(arguments: JsonValue) -> JsonValue:  # reads files, so sync: in a thread
        zone = str(_members(arguments).get("zone", "UTC"))
        local = now().astimezone(ZoneInfo(_known_zone(zone)))
        return {
            "time": local.isoformat(timespec="seconds"),
            "zone": str(local.tzinfo),
            "weekday": _WEEKDAYS[local.weekday()],
        }

    return Tool(CLOCK, tell)


@cache
def _zones() -> Mapping[str, str]:
    """Return the names of all zones by their casefolded form."""
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return {name.casefold(): name for name in names}


def _known_zone(asked: str) -> str:
    """Return the zone's name as the database spells it.

    Raises:
        ValueError: there is none; the text, for the model, suggests those that are close.
    """
    zones, folded = _zones(), asked.strip().replace(" ", "_").casefold()
    if folded in zones:
        return zones[folded]
    cities = [key for key in zones if key.rpartition("/")[2] == folded]
    close = cities or difflib.get_close_matches(folded, zones, 3)
    hint = (
        f"did you mean {' or '.join(zones[key] for key in close[:3])}?"
        if close
        else "names look like Europe/Berlin or UTC"
    )
    raise ValueError(f"there is no time zone {asked!r} in the IANA database; {hint}")


# --- recall ---------------------------------------------------------------------------------


def recall_tool(log: SessionLog) -> Tool:
    """Return the tool ``recall``, which searches the transcript of ``log`` as it is when called.

    Its own calls are no entries to it: they repeat every word that was ever looked for, and
    every hit. O(session), giving way to other tasks as it goes.
    """

    async def recall(arguments: JsonValue) -> JsonValue:
        members = _members(arguments)
        words = str(members["query"]).casefold().split()
        if not words:
            raise ValueError("the query holds no word to look for")
        limit = int(members.get("limit", RECALL_DEFAULT_LIMIT))  # 10.0 is an integer too
        hits: list[JsonValue] = []
        room = RECALL_RESULT_BYTES
        async with aclosing(_hits(log.snapshot().transcript(), words)) as found:
            async for hit in found:
                room -= len(strict_json.dumps(hit).encode()) + 1  # and a comma
                if len(hits) == limit or room < 0:
                    return {"hits": hits, "more": True}
                hits.append(hit)
        return {"hits": hits, "more": False}

    return Tool(RECALL, recall)


async def _hits(
    transcript: Sequence[Entry], words: Sequence[str]
) -> AsyncGenerator[dict[str, JsonValue], None]:
    """Yield what is found, newest first."""
    entries_n = characters_n = 0
    for entry in reversed(transcript):
        text = _searchable(entry)
        entries_n += 1
        characters_n += len(text)
        if entries_n >= _STRETCH_ENTRIES or characters_n >= _STRETCH_CHARACTERS:
            await trio.lowlevel.checkpoint()
            entries_n = characters_n = 0
        folded = text.casefold()
        places = [folded.find(word) for word in words]
        if min(places) >= 0:
            excerpt = _excerpt(text, _unfolded_index(text, min(places)))
            yield {"sequence": entry.sequence, "kind": entry.kind, "excerpt": excerpt}


def _searchable(entry: Entry) -> str:
    """Return what a person would say the entry says; nothing for a call of this very tool."""
    if type(entry) is UserEntry or type(entry) is AssistantEntry:
        return entry.text
    if type(entry) is FailureEntry:
        return f"{entry.code}: {entry.message}"
    assert type(entry) is ToolEntry
    if entry.name == RECALL.name:
        return ""
    if entry.error is not None:
        answer = f"{entry.error.code}: {entry.error.message}"
    else:
        assert entry.result is not None
        answer = result_content(entry.result)
    return f"{entry.name} {entry.arguments}\n{answer}"


def _unfolded_index(text: str, folded_index: int) -> int:
    """Return the index of the character whose folding, one to three characters, is there."""
    start, end = 0, len(text)
    while end - start > 1:
        middle = (start + end) // 2
        folded_n = len(text[start:middle].casefold())
        if folded_index < folded_n:
            end = middle
        else:
            folded_index -= folded_n
            start = middle
    return start


def _excerpt(text: str, index: int) -> str:
    """Return the surroundings of a place, marked where something is left out."""
    start = max(0, index - _EXCERPT_LEAD)
    end = start + EXCERPT_LENGTH
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _members(arguments: JsonValue) -> dict[str, Any]:
    assert isinstance(arguments, dict)  # the schema saw to it
    return cast("dict[str, Any]", arguments)
