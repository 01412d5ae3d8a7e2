"""The clock in every zone and for every wrong name; recall over any session, bounded and fair."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from log_support import SESSION, Conversation
from strategies import json_values, sessions, texts

from actors import builtin_tools, strict_json
from actors.builtin_tools import (
    CLOCK,
    EXCERPT_LENGTH,
    RECALL,
    RECALL_DEFAULT_LIMIT,
    RECALL_MAX_LIMIT,
    RECALL_RESULT_BYTES,
    clock_tool,
    recall_tool,
)
from actors.events import AssistantMessageCommitted, ToolExecutionCompleted, ToolExecutionStarted
from actors.session_log import open_session_log
from actors.tools import Tool, ToolRegistry
from actors.transcript import entry_value
from actors.values import AssistantMessage, ErrorInfo, Json, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from actors.events import Event
    from actors.session_log import SessionLog
    from actors.transcript import Entry

NOW = datetime(2026, 12, 1, 23, 30, 0, 987_654, tzinfo=UTC)
ZONES = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d")


async def answer(tool: Tool, arguments: object) -> Json | ErrorInfo:
    """Return what a call of the tool comes to."""
    registry = ToolRegistry()
    call = ToolCall("call-1", tool.spec.name, strict_json.dumps(arguments))
    async with registry.contributed(tool):
        return await registry.snapshot().run(call)


async def value_of(tool: Tool, **arguments: object) -> Any:
    """Return the result of a call that must succeed."""
    outcome = await answer(tool, arguments)
    assert isinstance(outcome, Json), outcome
    return outcome.value()


# --- clock ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "time", "zone", "weekday"),
    [
        ({}, "2026-12-01T23:30:00+00:00", "UTC", "Tuesday"),
        ({"zone": "UTC"}, "2026-12-01T23:30:00+00:00", "UTC", "Tuesday"),
        ({"zone": "Europe/Berlin"}, "2026-12-02T00:30:00+01:00", "Europe/Berlin", "Wednesday"),
        (
            {"zone": "America/New_York"},
            "2026-12-01T18:30:00-05:00",
            "America/New_York",
            "Tuesday",
        ),
        ({"zone": "Asia/Kolkata"}, "2026-12-02T05:00:00+05:30", "Asia/Kolkata", "Wednesday"),
        ({"zone": "europe/BERLIN"}, "2026-12-02T00:30:00+01:00", "Europe/Berlin", "Wednesday"),
        (
            {"zone": " america/new york "},
            "2026-12-01T18:30:00-05:00",
            "America/New_York",
            "Tuesday",
        ),
    ],
)
async def test_the_clock_tells_time_zone_and_weekday(
    arguments: dict[str, Any], time: str, zone: str, weekday: str
) -> None:
    """In the zone that is asked for, however it is written; in UTC where none is."""
    told = await value_of(clock_tool(lambda: NOW), **arguments)
    assert told == {"time": time, "zone": zone, "weekday": weekday}


async def test_the_clock_tells_the_time_of_now() -> None:
    """Unless told otherwise it is the system's clock that is read, at each call."""
    before = datetime.now(UTC).replace(microsecond=0)
    told = await value_of(clock_tool())
    assert before <= datetime.fromisoformat(told["time"]) <= datetime.now(UTC)


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 # the zone comes with it
)
def test_every_zone_tells_the_same_instant(zone: str, now: datetime) -> None:
    """Each zone of the database can be asked for; its time is RFC 3339 and the true one."""
    told = trio.run(partial(value_of, clock_tool(lambda: now), zone=zone))
    assert RFC3339.fullmatch(told["time"])
    local = datetime.fromisoformat(told["time"])
    assert local == now.replace(microsecond=0)
    assert told["zone"] == zone
    assert told["weekday"] == local.strftime("%A")
    assert local.utcoffset() == now.astimezone(ZoneInfo(zone)).utcoffset()


@pytest.mark.parametrize(
    "zone",
    [
        *("../../etc/passwd", "/etc/passwd", "/etc/localtime", "..", ".", "", "localtime"),
        *("America", "America/", "posix/UTC", "right/UTC", "posixrules", "zone.tab", "tzdata.zi"),
        *("Europe/../UTC", "Europe//Berlin", "UTC\0", "ü", "\u202e", "a" * 64, "CEST", "UTC+1"),
    ],
)
async def test_a_zone_that_there_is_not(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up that the database does not list, and the model is told so."""
    monkeypatch.setattr(builtin_tools, "ZoneInfo", lambda key: pytest.fail(f"asked for {key}"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] # a lambda's argument has no type
    outcome = await answer(clock_tool(), {"zone": zone})
    assert isinstance(outcome, ErrorInfo)
    assert outcome.code == "handler_error"
    assert outcome.message.startswith(f"ValueError: there is no time zone {zone!r} in the IANA")


@given(st.text(max_size=64) | st.sampled_from(ZONES).map(lambda zone: zone[1:]))
def test_any_name_of_a_zone_is_answered(zone: str) -> None:
    """Whatever a model asks for, it is told a time, or that there is no such zone."""
    if not strict_json.is_text(zone):
        return
    outcome = trio.run(answer, clock_tool(lambda: NOW), {"zone": zone})
    if isinstance(outcome, ErrorInfo):
        assert outcome.code == "handler_error"
        assert outcome.message.startswith("ValueError: there is no time zone ")


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("Europe/Berlim", "did you mean Europe/Berlin"),
        ("Louisville", "did you mean America/Kentucky/Louisville or America/Louisville?"),
        ("the moon", "names look like Europe/Berlin or UTC"),
    ],
)
async def test_a_wrong_zone_gets_a_hint(zone: str, hint: str) -> None:
    """A model that has the name nearly right is told the one it meant."""
    outcome = await answer(clock_tool(), {"zone": zone})
    assert isinstance(outcome, ErrorInfo)
    assert hint in outcome.message


# --- what models are told of them -----------------------------------------------------------------


@pytest.mark.parametrize("spec", [CLOCK, RECALL])
def test_a_model_is_told_of_every_argument(spec: Any) -> None:
    """Each has a type and a description, and no other is taken."""
    parameters = spec.parameters.value()
    assert spec.description
    assert parameters["type"] == "object"
    assert parameters["additionalProperties"] is False
    for argument in parameters["properties"].values():
        assert argument["type"]
        assert argument["description"].endswith(".")


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        (CLOCK, {"zone": 1}),
        (CLOCK, {"zone": "x" * 65}),
        (CLOCK, {"tz": "UTC"}),
        (CLOCK, []),
        (RECALL, {}),
        (RECALL, {"query": ""}),
        (RECALL, {"query": "x" * 201}),
        (RECALL, {"query": "a", "limit": 0}),
        (RECALL, {"query": "a", "limit": 51}),
        (RECALL, {"query": "a", "limit": 1.5}),
        (RECALL, {"query": "a", "limit": True}),
    ],
)
async def test_arguments_out_of_bounds(spec: Any, arguments: Any) -> None:
    """They are refused by the schema."""
    async with open_session_log(SESSION) as log:
        tool = clock_tool() if spec is CLOCK else recall_tool(log)
        outcome = await answer(tool, arguments)
    assert isinstance(outcome, ErrorInfo)
    assert outcome.code == "invalid_arguments"


# --- recall ---------------------------------------------------------------------------------------


def searchable(entry: Entry) -> str:
    """Return what an entry says, as plainly as its form on the wire allows."""
    value = entry_value(entry)
    if value["kind"] in {"user", "assistant"}:
        return str(value["text"])
    if value["kind"] == "failure":
        return f"{value['code']}: {value['message']}"
    if "error" in value:
        error: Any = value["error"]
        told = f"{error['code']}: {error['message']}"
    else:
        result = value["result"]
        told = result if isinstance(result, str) else strict_json.dumps(result)
    return f"{value['name']} {value['arguments']}\n{told}"


words = st.sampled_from(["a", "E", "ß", "SS", "lookup", "answer", "q", "1", "the end", "İ", "ﬃ"])


@given(
    sessions(max_events=40),
    st.lists(words | texts.filter(str.strip), min_size=1, max_size=3),
    st.integers(1, RECALL_MAX_LIMIT),
)
def test_recall_finds_what_is_there(events: list[Event], asked: list[str], limit: int) -> None:
    """The newest entries that hold every word, whatever their case, up to the limit."""
    query = " ".join(asked)[:200]

    async def main() -> None:
        async with open_session_log(SESSION) as log:
            await log.append_many(events)
            told = await value_of(recall_tool(log), query=query, limit=limit)
            found = [
                entry
                for entry in reversed(log.snapshot().transcript())
                if all(word in searchable(entry).casefold() for word in query.casefold().split())
            ]
        expected = [(entry.sequence, entry.kind) for entry in found[:limit]]
        assert [(hit["sequence"], hit["kind"]) for hit in told["hits"]] == expected
        assert told["more"] == (len(found) > limit)
        for hit, entry in zip(told["hits"], found, strict=False):
            assert_excerpt(hit["excerpt"], searchable(entry), query)

    trio.run(main)


def assert_excerpt(excerpt: str, text: str, query: str) -> None:
    """Check that an excerpt is of the text, bounded, and around the first hit."""
    assert len(excerpt) <= EXCERPT_LENGTH + 2
    # The marks of a cut are not the text's own, or may be.
    assert any(part in text for part in (excerpt, excerpt[1:], excerpt[:-1], excerpt[1:-1]))
    first = min(query.casefold().split(), key=text.casefold().find)
    assert first in excerpt.casefold()


@given(
    st.text("ßİﬃaé ", max_size=700),
    st.sampled_from(["needle", "NEEDLE", "ﬃeedle", "ßtraße"]),
    st.text("ßİﬃaé ", max_size=700),
)
@example("ß" * 1_000, "needle", "")
@example("", "needle", "ß" * 1_000)
@example("", "needle", "")
def test_an_excerpt_shows_the_hit_and_its_surroundings(
    before: str, needle: str, after: str
) -> None:
    """Also where letters become several when their case is folded, so that places move."""
    text = before + needle + after

    async def main() -> None:
        async with open_session_log(SESSION) as log:
            await log.append(Conversation().input(text))
            told = await value_of(recall_tool(log), query=needle.swapcase())
        (hit,) = told["hits"]
        assert needle.casefold() in hit["excerpt"].casefold()
        assert_excerpt(hit["excerpt"], text, needle)
        if before and len(before) < 50:
            assert hit["excerpt"].startswith(before)
        assert hit["excerpt"].startswith("…") == (not text.startswith(hit["excerpt"][:300]))

    trio.run(main)


async def test_each_kind_of_entry_is_searched() -> None:
    """Input, answer, arguments, results and errors of tools, and the end of a Turn."""
    talk = Conversation()
    events: list[Event] = [
        talk.input("needle in the input"),
        talk.request(),
        talk.answer("needle in the answer", calls_n=3),
        talk.start(),
        talk.complete("needle in a text\nof two lines"),
        talk.start(),
        talk.complete({"found": ["needle", "in a value"]}),
        talk.complete_with_error("needle_error"),
        talk.fail("needle_failure"),
    ]
    async with open_session_log(SESSION) as log:
        await log.append_many(events)
        told = await value_of(recall_tool(log), query="NEEDLE")
        assert told["hits"] == [
            {"sequence": 9, "kind": "failure", "excerpt": "needle_failure: the end"},
            {"sequence": 8, "kind": "tool", "excerpt": 'lookup {"q": 1}\nneedle_error: no'},
            {
                "sequence": 7,
                "kind": "tool",
                "excerpt": 'lookup {"q": 1}\n{"found":["needle","in a value"]}',
            },
            {
                "sequence": 5,
                "kind": "tool",
                "excerpt": 'lookup {"q": 1}\nneedle in a text\nof two lines',
            },
            {"sequence": 3, "kind": "assistant", "excerpt": "needle in the answer"},
            {"sequence": 1, "kind": "user", "excerpt": "needle in the input"},
        ]
        assert not told["more"]
        assert (await value_of(recall_tool(log), query="needle two lines"))["hits"] == [
            told["hits"][3]
        ]
        assert await value_of(recall_tool(log), query="needle haystack") == {
            "hits": [],
            "more": False,
        }


async def test_recall_does_not_find_itself() -> None:
    """However often it was asked, its own calls and hits are not among the hits."""
    async with open_session_log(SESSION) as log:
        talk = Conversation()
        await log.append_many(
            [talk.input("the needle"), talk.request(), AssistantMessageCommitted(
                "turn-1/step-1",
                AssistantMessage(
                    "", tuple(ToolCall(f"c{n}", "recall", '{"query": "needle"}') for n in range(20))
                ),
                "tool_calls",
            )]
        )  # fmt: skip
        first = await value_of(recall_tool(log), query="needle")
        assert [hit["sequence"] for hit in first["hits"]] == [1]
        for n in range(20):
            call = ToolCall(f"c{n}", "recall", '{"query": "needle"}')
            await log.append(ToolExecutionStarted("turn-1/step-1", call))
            told = await value_of(recall_tool(log), query="needle")
            assert told == first
            await log.append(ToolExecutionCompleted("turn-1/step-1", call.id, result=Json.of(told)))
        assert await value_of(recall_tool(log), query="needle") == first


async def test_recall_without_a_word() -> None:
    """A query of spaces alone is an error that says so."""
    async with open_session_log(SESSION) as log:
        outcome = await answer(recall_tool(log), {"query": " \n\u3000"})
    assert outcome == ErrorInfo("handler_error", "ValueError: the query holds no word to look for")


@pytest.mark.parametrize("limit", [None, 1, 10.0, 50])
async def test_recall_keeps_to_its_limit(limit: float | None) -> None:
    """Ten unless told otherwise; what is left out for it is told."""
    async with open_session_log(SESSION) as log:
        await log.append_many(many_turns(60))
        arguments = {} if limit is None else {"limit": limit}
        told = await value_of(recall_tool(log), query="hello", **arguments)
    expected = RECALL_DEFAULT_LIMIT if limit is None else limit
    assert len(told["hits"]) == expected
    assert told["more"]
    sequences = [hit["sequence"] for hit in told["hits"]]
    assert sequences == sorted(sequences, reverse=True)


@pytest.mark.parametrize("filler", ["x", "\0", "\U0001f600", "ß", '"', "\\"])
async def test_all_hits_together_are_bounded(filler: str) -> None:
    """Whatever is in them, and whatever that takes as JSON, the newest come first and fit."""
    async with open_session_log(SESSION) as log:
        await log.append_many(many_turns(60, f"{filler * 500} needle {filler * 500}"))
        told = await value_of(recall_tool(log), query="needle", limit=50)
    size = len(strict_json.dumps(told).encode())
    assert size <= RECALL_RESULT_BYTES + 30
    assert told["more"]
    assert len(told["hits"]) == 50 or size > RECALL_RESULT_BYTES - 2_500
    assert told["hits"][0]["sequence"] > told["hits"][-1]["sequence"]


def many_turns(turns_n: int, text: str = "hello") -> list[Event]:
    """Return Turns that fail at once."""
    talk, events = Conversation(), list[Any]()
    for _ in range(turns_n):
        events += [talk.input(text), talk.fail()]
    return events


@pytest.mark.parametrize(
    ("turns_n", "text"), [(2_000, "hello"), (20, "x" * 400_000)], ids=["many", "long"]
)
async def test_recall_gives_way(turns_n: int, text: str) -> None:
    """Searching a long session, or long entries, other tasks run every so often."""
    rounds_n = 0
    async with open_session_log(SESSION) as log:
        await log.append_many(many_turns(turns_n, text))
        async with trio.open_nursery() as nursery:

            async def count() -> None:
                nonlocal rounds_n
                while True:
                    await trio.lowlevel.checkpoint()
                    rounds_n += 1

            nursery.start_soon(count)
            await value_of(recall_tool(log), query="nothing of the kind")
            nursery.cancel_scope.cancel()
    assert rounds_n >= 8  # at every 200th entry, or half a million characters


@given(json_values)
def test_any_arguments_are_answered(arguments: Any) -> None:
    """Whatever a model sends, either tool answers with a result or an error."""

    async def main() -> None:
        async with open_session_log(SESSION) as log:
            for tool in (clock_tool(), recall_tool(log)):
                assert isinstance(await answer(tool, arguments), (Json, ErrorInfo))

    trio.run(main)


async def test_recall_works_on_a_log_on_disk(tmp_path: Path) -> None:
    """What a process before this one recorded is found."""
    async with open_session_log(SESSION, tmp_path / "s.sqlite3") as log:
        await log.append_many(many_turns(1, "where is the needle"))
    async with open_session_log(SESSION, tmp_path / "s.sqlite3") as log:
        assert await recalled(log, "needle") == [1]


async def recalled(log: SessionLog, query: str) -> list[int]:
    told = await value_of(recall_tool(log), query=query)
    return [hit["sequence"] for hit in told["hits"]]
