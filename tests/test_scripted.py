"""The scripted model: what it plays, where it says that there is nothing to play, bad scripts."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import trio
from agent_support import calls, fails, says, scripted
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from log_support import LOOKUP, Conversation, assert_same, chunk, rows_of, write_rows
from strategies import sessions

from actors.agent import Agent
from actors.codec import envelope_json, envelope_value
from actors.errors import ConfigurationError
from actors.events import (
    AssistantMessageCommitted,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    UserInputAccepted,
)
from actors.providers import scripted as scripted_module
from actors.providers.scripted import (
    SCRIPTED_ROUTE,
    Script,
    ScriptedAdapter,
    load_script,
    script_of,
)
from actors.reader import open_reader
from actors.replay import replay_rows
from actors.routes import Chunk, ModelFailure, ModelOutput, ModelRequest, ModelResponse, RouteTable
from actors.session_log import open_session_log
from actors.snapshot import Timeline
from actors.strict_json import MAX_DEPTH
from actors.values import (
    AssistantMessage,
    Json,
    Message,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from web.offline import exported_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.events import Event
    from actors.routes import Adapter
    from actors.snapshot import Snapshot

CODES = ("cancelled", "provider_error", "provider_timeout", "step_limit")
Line: TypeAlias = dict[str, Any]


@st.composite
def recordings(draw: st.DrawFn) -> list[Event]:
    """Return sessions whose Turns also fail for a provider's reasons."""
    return [
        evolve(event, code=draw(st.sampled_from(CODES))) if isinstance(event, StepFailed) else event
        for event in draw(sessions())
    ]


def recorded(events: Sequence[Event]) -> Snapshot:
    timeline = Timeline("default")
    replay_rows(timeline, rows_of(events), None)
    return timeline.snapshot()


def lines_of(snapshot: Snapshot) -> list[str]:
    return [envelope_json(envelope) + "\n" for envelope in snapshot]


def loaded(text: str | bytes) -> Script:
    """Load a script that is in the file for a moment only."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "script.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_script(path)


def fault_of(text: str | bytes) -> str:
    """Return what is said of a bad script, from its line number on."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(text)
    name, _, fault = str(caught.value).partition("script.jsonl, ")
    assert name
    assert fault.startswith("line "), fault
    assert "\n" not in fault
    return fault


def requests_of(events: Sequence[Event]) -> list[ModelRequest]:
    """Return what an agent gave the model in each Step, by an account of its own."""
    history: list[Message] = []
    requests: list[ModelRequest] = []
    turn_n = 0
    for event in events:
        if isinstance(event, UserInputAccepted):
            turn_n += 1
            history += event.messages
        elif isinstance(event, ModelRequestRecorded):
            sent = event.messages
            messages = sent.messages if isinstance(sent, InlineMessages) else tuple(history)
            requests.append(
                ModelRequest(
                    event.route, event.system_prompt, event.tools, messages, turn_n, event.step_id
                )
            )
        elif isinstance(event, AssistantMessageCommitted):
            history += [event.message] if event.message != AssistantMessage("") else []
        elif isinstance(event, ToolExecutionCompleted):
            history.append(ToolMessage("whatever it was", event.call_id))
    return requests


def outputs_of(events: Sequence[Event], step_id: str) -> list[ModelOutput]:
    """Return what the model said in a Step, by an account of its own."""
    chunks: list[ModelOutput] = [
        Chunk(event.chunk)
        for event in events
        if isinstance(event, ModelChunkRecorded) and event.step_id == step_id
    ]
    for event in events:
        if isinstance(event, AssistantMessageCommitted) and event.step_id == step_id:
            return [*chunks, ModelResponse(event.message, event.finish_reason, event.usage)]
    for event in events:
        if (
            isinstance(event, StepFailed)
            and event.step_id == step_id
            and event.code.startswith("provider_")
        ):
            return [*chunks, ModelFailure(event.code, event.message)]
    return chunks


def played(adapter: Adapter, *requests: ModelRequest) -> list[list[ModelOutput]]:
    async def play() -> list[list[ModelOutput]]:
        return [[output async for output in adapter.stream(request)] for request in requests]

    return trio.run(play)


def failure(script: Script, request: ModelRequest) -> str:
    """Return what is said of a request for which nothing at all is played."""
    ((only,),) = played(ScriptedAdapter(script), request)
    assert isinstance(only, ModelFailure)
    assert only.code == "provider_error"
    return only.message


TURNS = Conversation()
EVENTS: list[Event] = [*TURNS.turn(calls_n=2), *TURNS.turn()]
SCRIPT = script_of(recorded(EVENTS))
FIRST, SECOND, THIRD = requests_of(EVENTS)


# --- what is played ---------------------------------------------------------------------------


@given(recordings())
def test_every_step_plays_as_it_was_recorded(events: list[Event]) -> None:
    """Asked what was asked then, whatever tools now say, it answers what was answered then."""
    script = script_of(recorded(events))
    requests = requests_of(events)
    assert list(script.steps) == [request.step_id for request in requests]
    outputs = played(ScriptedAdapter(script), *requests)
    for request, came in zip(requests, outputs, strict=True):
        expected = outputs_of(events, request.step_id)
        if not expected or isinstance(expected[-1], Chunk):
            last = came.pop()
            assert isinstance(last, ModelFailure)
            assert last.code == "provider_error"
            prefix = f"the script has no answer for {request.step_id}: "
            assert last.message.startswith(prefix)
        assert came == expected


@given(recordings(), st.randoms())
def test_steps_are_found_by_their_ids_alone(events: list[Event], random: Any) -> None:
    """The adapter remembers nothing: in any order, and again, a Step plays the same."""
    adapter = ScriptedAdapter(script_of(recorded(events)))
    requests = requests_of(events)
    expected = dict(
        zip([request.step_id for request in requests], played(adapter, *requests), strict=True)
    )
    shuffled = [*requests, *requests]
    random.shuffle(shuffled)
    assert played(adapter, *shuffled) == [expected[request.step_id] for request in shuffled]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (None, "the recording ends there"),
        ("cancelled", "the recorded turn ended with cancelled: the end"),
        ("interrupted", "the recorded turn ended with interrupted: the end"),
    ],
)
def test_a_step_without_an_answer_says_so(end: str | None, why: str) -> None:
    """Cut short then, a Step plays what chunks there are and fails, naming itself and why."""
    conversation = Conversation()
    events: list[Event] = [conversation.input(), conversation.request(), conversation.chunk("a")]
    if end is not None:
        events.append(conversation.fail(end))
    (came,) = played(ScriptedAdapter(script_of(recorded(events))), *requests_of(events))
    message = f"the script has no answer for turn-1/step-1: {why}"
    assert came == [Chunk(Json.of("a")), ModelFailure("provider_error", message)]


async def test_each_output_comes_after_a_checkpoint() -> None:
    """A long recording holds up no other task, and a Turn can be cancelled at any chunk."""
    adapter = ScriptedAdapter(SCRIPT)
    departing = evolve(FIRST, messages=())
    for request, outputs_n in ((FIRST, 2), (THIRD, 2), (departing, 1)):
        for before_n in range(outputs_n):
            async with aclosing(adapter.stream(request)) as stream:
                for _ in range(before_n):
                    await anext(stream)
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await anext(stream)
                assert scope.cancelled_caught


def test_values_are_held_once() -> None:
    """A script's Steps hold no copies of messages: what they compare is what the history holds."""
    for step in SCRIPT.steps.values():
        pairs = zip(SCRIPT.messages(step), SCRIPT.history, strict=False)
        assert all(message is held for message, held in pairs)


async def test_a_recorded_session_runs_again(tmp_path: Path) -> None:
    """An agent given the same inputs records the same session, the route's name apart."""
    first = scripted(
        [Chunk(Json.of({"delta": 1})), calls("a", "b")],
        [Chunk(Json.of(2)), says("done")],
        [Chunk(Json.of(3)), fails("provider_timeout")],
        [says("again")],
    )
    original = await turns_of(first, tmp_path / "original.sqlite3")
    script_path = tmp_path / "script.jsonl"
    with open_reader(tmp_path / "original.sqlite3") as reader:
        script_path.write_text("".join(exported_lines(reader, "default")), encoding="utf-8")
    again = await turns_of(ScriptedAdapter(load_script(script_path)), None)
    assert [envelope.event for envelope in again] == [envelope.event for envelope in original]
    # And that session has become a script of itself.
    third = await turns_of(ScriptedAdapter(script_of(again)), None)
    assert [envelope.event for envelope in third] == [envelope.event for envelope in original]


async def turns_of(adapter: Adapter, database: Path | None) -> Snapshot:
    async with open_session_log("default", database=database) as log:
        agent = Agent(log, RouteTable(SCRIPTED_ROUTE, {SCRIPTED_ROUTE: adapter}))
        for text in ("one", "two", "three"):
            await agent.run_turn(f"invocation-{text}", text)
        return log.snapshot()


# --- where the request and the script part ------------------------------------------------------


def changed(message: Message, kind: str) -> Message:
    """Return a message that differs from ``message`` in something that is compared."""
    if kind == "role":
        return (
            AssistantMessage(message.content)
            if isinstance(message, UserMessage)
            else UserMessage(message.content)
        )
    if isinstance(message, ToolMessage):
        return evolve(message, tool_call_id=message.tool_call_id + "x")
    if kind == "calls" and isinstance(message, AssistantMessage):
        return evolve(message, tool_calls=(*message.tool_calls, ToolCall("new", "lookup", "{}")))
    return evolve(message, content=message.content + "x")


@given(recordings(), st.data())
def test_any_other_history_is_a_departure(events: list[Event], data: st.DataObject) -> None:
    """A message changed, added or left out: no chunk is played, and the failure says which."""
    script = script_of(recorded(events))
    requests = requests_of(events)
    for request in requests:
        messages = list(request.messages)
        kinds = ["content", "calls", "role", "left out"] if messages else []
        kind = data.draw(st.sampled_from([*kinds, "added"]))
        at = data.draw(st.integers(0, max(0, len(messages) - 1)))
        if kind == "left out":
            at = len(messages) - 1
            messages.pop()
        elif kind == "added":
            at = len(messages)
            messages.append(UserMessage("one more"))
        else:
            messages[at] = changed(messages[at], kind)
        said = failure(script, evolve(request, messages=tuple(messages)))
        assert said.startswith(f"message {at + 1} of {request.step_id} departs from the script: ")


@pytest.mark.parametrize(
    ("at", "message", "expected", "came"),
    [
        (
            0,
            UserMessage("hallo"),
            '{"role":"user","content":"hello"}',
            '{"role":"user","content":"hallo"}',
        ),
        (
            3,
            ToolMessage("x", "call-1"),
            '{"role":"tool","tool_call_id":"call-2"}',
            '{"role":"tool","tool_call_id":"call-1"}',
        ),
        (
            2,
            UserMessage("what?"),
            '{"role":"tool","tool_call_id":"call-1"}',
            '{"role":"user","content":"what?"}',
        ),
    ],
)
def test_a_departure_shows_both_sides(at: int, message: Message, expected: str, came: str) -> None:
    """What the script has there and what the request has stand side by side."""
    messages = list(SECOND.messages)
    messages[at] = message
    said = failure(SCRIPT, evolve(SECOND, messages=tuple(messages)))
    place = f"message {at + 1} of turn-1/step-2 departs from the script"
    assert said == f"{place}: expected {expected}, but {came} came"


def test_a_departure_in_the_calls_shows_both_from_the_same_place() -> None:
    """A message too long to be shown whole is cut to what differs and a little before."""
    messages = list(SECOND.messages)
    messages[1] = AssistantMessage("let me see")
    said = failure(SCRIPT, evolve(SECOND, messages=tuple(messages)))
    shown = re.fullmatch(r".*: expected …(.*)…, but …(.*) came", said)
    assert shown is not None
    assert shown[1].startswith('t","content":"let me see","tool_calls":[{"id":"call-1"')
    assert shown[2] == 't","content":"let me see","tool_calls":[]}'


def test_a_departure_at_an_end_names_no_message() -> None:
    """A history that is too short or too long parts where the shorter one ends."""
    short = failure(SCRIPT, evolve(SECOND, messages=SECOND.messages[:3]))
    assert short == (
        "message 4 of turn-1/step-2 departs from the script: "
        'expected {"role":"tool","tool_call_id":"call-2"}, but no message came'
    )
    long = failure(SCRIPT, evolve(FIRST, messages=(*FIRST.messages, UserMessage("and?"))))
    assert long == (
        "message 2 of turn-1/step-1 departs from the script: "
        'expected no message, but {"role":"user","content":"and?"} came'
    )


@pytest.mark.parametrize("length", [30, 1_000, 1_000_000])
def test_a_departure_of_long_messages_is_short(length: int) -> None:
    """However long the messages and however late the difference, it is shown, and little else."""
    conversation = Conversation()
    events: list[Event] = [conversation.input("a" * length + "Y" + "b" * length)]
    events.append(conversation.request())
    (request,) = requests_of(events)
    given_message = UserMessage("a" * length + "N" + "b" * length)
    said = failure(script_of(recorded(events)), evolve(request, messages=(given_message,)))
    assert "aaaY" in said
    assert "aaaN" in said
    assert len(said) < 400


def test_a_step_that_was_not_recorded() -> None:
    """Past its end the script names its last Step; an empty one says that it has none."""
    beyond = evolve(THIRD, step_id="turn-3/step-1")
    assert failure(SCRIPT, beyond) == (
        "the script has no turn-3/step-1: its last step is turn-2/step-1"
    )
    empty = script_of(recorded([chunk(1)]))
    assert failure(empty, FIRST) == "the script has no turn-1/step-1: it has no step"


def test_what_is_not_compared() -> None:
    """A tool's answer, the prompt, the tools, the route may be others: the script still plays."""
    expected = played(ScriptedAdapter(SCRIPT), SECOND)
    messages = tuple(
        evolve(message, content="12:01") if isinstance(message, ToolMessage) else message
        for message in SECOND.messages
    )
    other = ModelRequest(
        SCRIPTED_ROUTE,
        "another prompt",
        (LOOKUP, ToolSpec("clock", "", Json.of({}))),
        messages,
        9,
        SECOND.step_id,
    )
    assert played(ScriptedAdapter(SCRIPT), other) == expected


def test_replaced_messages_are_the_ones_compared() -> None:
    """Where a hook replaced the messages of the recording, the request is held to those."""
    conversation = Conversation()
    given_messages = (UserMessage("instead"), AssistantMessage("of it"))
    events: list[Event] = [
        conversation.input(),
        conversation.request(InlineMessages(given_messages)),
        conversation.answer(),
    ]
    script = script_of(recorded(events))
    (request,) = requests_of(events)
    assert request.messages == given_messages
    assert played(ScriptedAdapter(script), request) == [outputs_of(events, request.step_id)]
    of_history = evolve(request, messages=(UserMessage("hello"),))
    assert "message 1 of turn-1/step-1 departs" in failure(script, of_history)


# --- reading a script -------------------------------------------------------------------------


@given(recordings().filter(bool))
def test_an_export_is_loaded_as_the_session_it_is(events: list[Event]) -> None:
    """Events, projections, even the chain are those of the session that was exported."""
    snapshot = recorded(events)
    assert_same(loaded("".join(lines_of(snapshot))).snapshot, snapshot)


def reordered(line: Line) -> str:
    return json.dumps(dict(reversed(line.items())))


def spaced(line: Line) -> str:
    return "\t" + json.dumps(line, indent=None, separators=(" , ", " : ")) + " "


@given(recordings().filter(bool), st.sampled_from([reordered, spaced]), st.booleans())
def test_any_form_of_the_same_json_is_the_same_script(
    events: list[Event], written: Callable[[Line], str], crlf: bool
) -> None:
    """Blanks, escapes, the keys' order, CRLF, and no line end at the file's end change nothing."""
    snapshot = recorded(events)
    lines = [written(envelope_value(envelope)) for envelope in snapshot]
    text = ("\r\n" if crlf else "\n").join(lines)
    found = [envelope.event for envelope in loaded(text).snapshot]
    assert found == [envelope.event for envelope in snapshot]


def test_crlf_keeps_an_export_what_it_is() -> None:
    """A line end that a checkout of the file has changed is not taken for content."""
    text = "".join(lines_of(SCRIPT.snapshot))
    assert_same(loaded(text.replace("\n", "\r\n")).snapshot, SCRIPT.snapshot)
    assert_same(loaded(text.removesuffix("\n")).snapshot, SCRIPT.snapshot)


def test_the_deepest_payload_of_an_export_is_taken() -> None:
    """What the log can hold its export can hold; only another form of the line has less room."""
    value: object = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    snapshot = recorded([chunk(1), chunk(value)])
    lines = lines_of(snapshot)
    assert_same(loaded("".join(lines)).snapshot, snapshot)
    other_form = json.dumps(envelope_value(snapshot[1]))
    fault = fault_of(lines[0] + other_form)
    assert fault.startswith("line 2: /payload/chunk/0/0/")
    assert fault.endswith(": nested deeper than 128")


def test_line_separators_inside_strings_end_no_line() -> None:
    """Only a newline does: U+2028, U+0085 and their like stand in an export as they are."""
    snapshot = recorded([chunk("a\u2028b\u2029c\x85d\x0be")])
    assert_same(loaded("".join(lines_of(snapshot))).snapshot, snapshot)


LINES = lines_of(SCRIPT.snapshot)


def with_line(line_n: int, change: Callable[[Line], object]) -> str:
    """Return the good script with one line's document changed, written as an export would."""
    lines = list(LINES)
    document = json.loads(lines[line_n - 1])
    change(document)
    lines[line_n - 1] = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return "".join(lines)


def with_text(line_n: int, text: str) -> str:
    return "".join([*LINES[: line_n - 1], text, *LINES[line_n:]])


def test_the_lines_to_be_damaged_are_sound() -> None:
    """What the next test damages is taken as it is."""
    assert loaded(with_line(3, lambda _: None)).snapshot.last_sequence == len(EVENTS)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: there is no event"),
        ("\n", "line 1: is empty"),
        (with_text(4, "\n"), "line 4: is empty"),
        ("".join(LINES) + "\n", f"line {len(LINES) + 1}: is empty"),
        ("".join(LINES) + " \t\r\n", f"line {len(LINES) + 1}: is empty"),
        ("\ufeff" + "".join(LINES), "line 1: begins with a byte order mark"),
        ("".join(LINES).encode() + b"\xff\n", f"line {len(LINES) + 1}: is not UTF-8 text"),
        ("".join(LINES).encode("utf-16-le"), "line 1: "),
        (with_text(2, "hello\n"), "line 2: not JSON: "),
        (with_text(2, LINES[1][:-10] + "\n"), "line 2: not JSON: "),
        ("".join(LINES)[:-3], f"line {len(LINES)}: not JSON: "),
        (with_text(2, "[1]\n"), "line 2: [1] is not of type 'object'"),
        (with_text(2, "{}\n"), "line 2: 'session_id' is a required property"),
        (with_line(2, lambda line: line.update(more=1)), "line 2: Additional properties"),
        (with_text(3, LINES[1]), "line 3: sequence 2 where 3 must come"),
        (with_text(3, ""), "line 3: sequence 4 where 3 must come"),
        ("".join(LINES[1:]), "line 1: sequence 2 where 1 must come"),
        (with_line(5, lambda line: line.update(sequence=0)), "line 5: /sequence: 0 is less"),
        (
            with_line(5, lambda line: line.update(sequence=10**30)),
            f"line 5: sequence {10**30} where 5 must come",
        ),
        (
            with_line(5, lambda line: line.update(session_id="other")),
            "line 5: belongs to session other, and what comes before to default",
        ),
        (with_line(1, lambda line: line.update(session_id="a b")), "line 1: /session_id: "),
        (
            with_line(6, lambda line: line.update(recorded_at="2026-02-30T00:00:00.000000Z")),
            "line 6: recorded_at '2026-02-30T00:00:00.000000Z' is not a time",
        ),
        (with_line(6, lambda line: line.update(recorded_at="noon")), "line 6: "),
        (
            with_line(6, lambda line: line.update(type="unheard_of")),
            "line 6: unknown event type 'unheard_of'",
        ),
        (
            with_line(3, lambda line: line["payload"].update(step_id="turn-0/step-1")),
            "line 3: model_chunk_recorded: /step_id: ",
        ),
        (
            with_line(3, lambda line: line["payload"].pop("chunk")),
            "line 3: model_chunk_recorded: 'chunk' is a required property",
        ),
        (with_line(3, lambda line: line.update(payload=None)), "line 3: model_chunk_recorded: "),
        (
            with_text(3, LINES[2].replace('"chunk":"word"', '"chunk":NaN')),
            "line 3: model_chunk_recorded: /chunk: NaN is not a JSON number",
        ),
        (
            with_text(3, LINES[2].replace('"chunk"', '"chunk":1,"chunk"')),
            "line 3: model_chunk_recorded: /chunk: a duplicate key",
        ),
        (
            with_text(3, LINES[2].replace('"word"', '"\\ud800"')),
            "line 3: model_chunk_recorded: /chunk: a lone surrogate",
        ),
        (
            with_text(3, LINES[2].replace('{"session_id"', '{ "sequence":1,"session_id"')),
            "line 3: /sequence: a duplicate key",
        ),
        (
            with_line(2, lambda line: line["payload"]["messages"].update(sha256="0" * 64)),
            "line 2: request whose sha256 is not of the history at 1",
        ),
        (
            with_line(len(LINES), lambda line: line["payload"].update(step_id="turn-9/step-1")),
            f"line {len(LINES)}: assistant_message_committed of turn-9/step-1 during turn-2",
        ),
    ],
)
def test_a_bad_script_is_refused_with_its_line(text: str | bytes, fault: str) -> None:
    """The first line that an export of a sound session could not have there is named, and why."""
    assert fault_of(text).startswith(fault)


def test_a_line_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of a line is held than the longest one that could be sound."""
    longest = max(len(line.encode()) for line in LINES)
    monkeypatch.setattr(scripted_module, "LINE_BYTES", longest)
    assert loaded("".join(LINES)).snapshot.last_sequence == len(LINES)
    assert fault_of("".join(LINES) + "x" * 10 * longest) == (
        f"line {len(LINES) + 1}: is longer than {longest} bytes"
    )
    if Path("/dev/zero").exists():
        with pytest.raises(ConfigurationError, match=r"^/dev/zero, line 1: is longer"):
            load_script(Path("/dev/zero"))


def test_a_fault_is_told_in_few_words() -> None:
    """However long what is wrong with a line, the refusal stays readable."""
    key = "k" * 100_000
    assert len(fault_of(f'{{"{key}":1,"{key}":2}}')) < 600


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """It is named, with the system's reason."""
    path = tmp_path / name
    with pytest.raises(ConfigurationError) as caught:
        load_script(path)
    assert str(caught.value).startswith(f"{path}: cannot be read: ")
    assert isinstance(caught.value.__cause__, OSError)


def test_the_sound_part_of_a_damaged_session_is_a_script(tmp_path: Path) -> None:
    """What an export leaves of an unsound session can be played as far as it goes."""
    rows = rows_of(EVENTS)
    rows[9] = rows[9]._replace(payload="{}")
    database, path = tmp_path / "damaged.sqlite3", tmp_path / "script.jsonl"
    write_rows(database, rows)
    with open_reader(database) as reader, path.open("w", encoding="utf-8") as file:
        lines = exported_lines(reader, "default")
        with pytest.raises(Exception, match="sequence 10"):
            file.writelines(lines)
    script = load_script(path)
    assert script.snapshot.last_sequence == 9
    assert list(script.steps) == ["turn-1/step-1", "turn-1/step-2"]
