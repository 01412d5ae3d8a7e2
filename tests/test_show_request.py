"""``show --request``: what the model was given in a Step, to the last character."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from log_support import LOOKUP, Conversation, rows_of, write_rows
from process_support import PATIENCE_S, TREE, error_line, sessiond
from strategies import sessions

from actors.errors import StoreError
from actors.events import HistoryRef, InlineMessages, ModelRequestRecorded
from actors.providers.chat_request import request_body
from actors.replay import replay_rows
from actors.routes import ModelRequest
from actors.snapshot import Timeline
from actors.strict_json import loads
from actors.values import AssistantMessage, Json, Route, ToolMessage, ToolSpec, UserMessage
from web.cli import cli
from web.requests import find_request, is_step_id, request_document

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from actors.events import Event
    from actors.snapshot import Snapshot

Document = dict[str, Any]
KEYS = ["step_id", "turn_id", "route", "system_prompt", "tools", "messages"]
SAID = "a\u2028b \x1b[2J \U0001f600 \x9b é"
"""What would be changed by any escaping but JSON's own."""


def conversation() -> list[Event]:
    """Return two Turns: one with tool calls, and one whose second request holds its messages."""
    talk = Conversation()
    second = talk.input(SAID)
    events: list[Event] = [second, talk.request(), talk.answer("let me see", calls_n=2)]
    events += [talk.complete({"found": [1, None]}), talk.complete_with_error()]
    events += [talk.request(), talk.answer("")]
    events += [talk.input("again"), talk.request(), talk.answer("", calls_n=1), talk.complete()]
    events.append(talk.request(InlineMessages((UserMessage("instead"), ToolMessage("", "call-9")))))
    return [*events, talk.answer()]


EVENTS = conversation()


def recorded(events: list[Event]) -> Snapshot:
    timeline = Timeline("default")
    replay_rows(timeline, rows_of(events), None)
    return timeline.snapshot()


def document_of(snapshot: Snapshot, step_id: str) -> tuple[str, Document]:
    """Return a request's text, and what it says."""
    text = "".join(request_document(find_request(snapshot, step_id)))
    document = loads(text)
    assert isinstance(document, dict)
    sent = ["sent"] if document["route"] == {"provider": "openai", "model": "some/model"} else []
    assert list(document) == KEYS + sent
    return text, document


def run(*arguments: str | Path, **environment: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "session.sqlite3"
    write_rows(path, rows_of(EVENTS))
    return path


# --- what it says -----------------------------------------------------------------------------


@given(sessions())
def test_any_request_is_what_its_record_says(events: list[Event]) -> None:
    """The messages hash to the recorded sum or are those held; the rest is the event's own."""
    snapshot = recorded(events)
    for event in events:
        if not isinstance(event, ModelRequestRecorded):
            continue
        text, document = document_of(snapshot, event.step_id)
        assert text.count("\n") == 1
        assert text == json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
        assert document["step_id"] == event.step_id
        assert document["turn_id"] == event.turn_id
        messages = json.dumps(document["messages"], ensure_ascii=False, separators=(",", ":"))
        if isinstance(event.messages, HistoryRef):
            assert hashlib.sha256(messages.encode()).hexdigest() == event.messages.sha256
        else:
            held = [as_plain(message) for message in event.messages.messages]
            assert document["messages"] == held


def as_plain(message: UserMessage | AssistantMessage | ToolMessage) -> Document:
    plain: Document = {"role": message.role, "content": message.content}
    if isinstance(message, AssistantMessage):
        plain["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    return plain


@given(sessions())
def test_a_request_does_not_change_as_its_session_grows(events: list[Event]) -> None:
    """It shows the history as it was then, not what came later."""
    whole = recorded(events)
    for index, event in enumerate(events):
        if isinstance(event, ModelRequestRecorded):
            then = recorded(events[: index + 1])
            assert document_of(then, event.step_id) == document_of(whole, event.step_id)


def test_every_part_of_a_request_is_there() -> None:
    """Route, prompt, and each tool with its parameters, their keys in the recorded order."""
    talk = Conversation()
    tool = ToolSpec("clock", "tells the time", Json.of({"type": "object", "$id": "x", "a": [1.5]}))
    request = evolve(
        (talk.input(), talk.request())[1],
        route=Route("openai", "some/model"),
        system_prompt="Be\nbrief.",
        tools=(LOOKUP, tool),
    )
    text, document = document_of(recorded([Conversation().input(), request]), "turn-1/step-1")
    assert document == {
        "step_id": "turn-1/step-1",
        "turn_id": "turn-1",
        "route": {"provider": "openai", "model": "some/model"},
        "system_prompt": "Be\nbrief.",
        "tools": [
            {"name": "lookup", "description": "finds things", "parameters": {"type": "object"}},
            {
                "name": "clock",
                "description": "tells the time",
                "parameters": {"type": "object", "$id": "x", "a": [1.5]},
            },
        ],
        "messages": [{"role": "user", "content": "hello"}],
        "sent": document["sent"],
    }
    assert '{"type":"object","$id":"x","a":[1.5]}' in text


def test_messages_are_those_of_the_step() -> None:
    """Each Step shows what had been said before it, answers and errors of tools included."""
    snapshot = recorded(EVENTS)
    _, first = document_of(snapshot, "turn-1/step-1")
    assert first["messages"] == [{"role": "user", "content": SAID}]
    _, second = document_of(snapshot, "turn-1/step-2")
    assert [message["role"] for message in second["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert second["messages"][2]["content"] == '{"found":[1,null]}'
    assert second["messages"][3]["content"] == '{"error":{"code":"handler_error","message":"no"}}'
    _, third = document_of(snapshot, "turn-2/step-1")
    # The empty answer between the two Turns is no message.
    assert [message["role"] for message in third["messages"][4:]] == ["user"]
    _, inline = document_of(snapshot, "turn-2/step-2")
    assert inline["messages"] == [
        {"role": "user", "content": "instead"},
        {"role": "tool", "content": "", "tool_call_id": "call-9"},
    ]


def test_no_messages_at_all() -> None:
    """A hook may have left nothing; that is an empty array."""
    talk = Conversation()
    snapshot = recorded([talk.input(), talk.request(InlineMessages(()))])
    assert document_of(snapshot, "turn-1/step-1")[1]["messages"] == []


def test_messages_that_do_not_match_their_sum_are_not_shown() -> None:
    """A history that is not the one the request names is a failure, whoever let it through."""
    talk = Conversation()
    timeline = Timeline("default")
    replay_rows(timeline, rows_of([talk.input(), talk.request()]), None)
    snapshot = timeline.snapshot()
    request = snapshot[1].event
    assert isinstance(request, ModelRequestRecorded)
    assert isinstance(request.messages, HistoryRef)
    forged = Timeline("default")
    ref = evolve(request.messages, sha256="0" * 64)
    events = [talk.input(), evolve(request, messages=ref)]
    for row, event in zip(rows_of(events), events, strict=True):
        forged.publish(row, event)
    with pytest.raises(StoreError, match="sha256 of turn-1/step-1 is not of the history at 1"):
        find_request(forged.snapshot(), "turn-1/step-1")


def test_what_a_provider_is_sent() -> None:
    """``sent`` is the body of the HTTP request, to the byte: user messages in a row are one there.

    They are apart in ``messages``, as they are recorded; other models are sent nothing.
    """
    talk = Conversation()
    first = talk.input("one")
    said = (UserMessage("one"), UserMessage("two"), AssistantMessage(""), UserMessage("three"))
    request = evolve(
        talk.request(InlineMessages(said)),
        route=Route("openai", "some/model"),
        system_prompt="Be brief.",
        tools=(LOOKUP,),
    )
    text, document = document_of(recorded([first, request]), "turn-1/step-1")
    assert [each["content"] for each in document["messages"]] == ["one", "two", "", "three"]
    assert [each["content"] for each in document["sent"]["messages"]] == [
        *("Be brief.", "one\n\ntwo", "", "three")
    ]
    asked = ModelRequest(request.route, "Be brief.", (LOOKUP,), said, 1, "turn-1/step-1")
    assert text.endswith(f',"sent":{request_body(asked, "some/model").decode()}}}\n')


# --- what is not there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events_n", "step_id", "told"),
    [
        (13, "turn-2/step-7", "turn-2 has 2, turn-2/step-1 to turn-2/step-2"),
        (9, "turn-2/step-7", "turn-2 has one, turn-2/step-1"),
        (8, "turn-2/step-1", "it has 2, turn-1/step-1 to turn-1/step-2"),
        (13, "turn-20/step-1", "it has 4, turn-1/step-1 to turn-2/step-2"),
        (2, "turn-9/step-1", "it has one, turn-1/step-1"),
        (1, "turn-1/step-1", "it has no step"),
        (0, "turn-1/step-1", "it has no step"),
    ],
)
def test_a_step_that_is_not_there(events_n: int, step_id: str, told: str) -> None:
    """The failure says which Steps there are: the Turn's, or else the session's."""
    snapshot = recorded(list(islice(EVENTS, events_n)))
    with pytest.raises(StoreError) as caught:
        find_request(snapshot, step_id)
    assert str(caught.value) == f"session default has no {step_id}; {told}"


@pytest.mark.parametrize("step_id", ["turn-1/step-1", f"turn-{10**50}/step-{10**50}"])
def test_step_ids(step_id: str) -> None:
    """A Step's id is taken as a whole, whether there is such a Step or not."""
    assert is_step_id(step_id)


MALFORMED = [
    *("", "turn-1", "step-1", "turn-1/step-0", "turn-0/step-1", "turn-01/step-1"),
    *("turn-1/step-1\n", " turn-1/step-1", "turn-1/step-1/", "TURN-1/STEP-1", "turn-1\\step-1"),
    "turn-\u0661/step-1",
]


@pytest.mark.parametrize("step_id", MALFORMED)
def test_not_step_ids(step_id: str) -> None:
    """Nothing else is."""
    assert not is_step_id(step_id)


@pytest.mark.parametrize("step_id", MALFORMED)
def test_a_malformed_step_id_is_a_usage_error(database: Path, step_id: str) -> None:
    """Exit code 2, and nothing on standard output."""
    result = run("show", database, "--request", step_id)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "is not a step's id, such as turn-1/step-1" in result.stderr


# --- the command ------------------------------------------------------------------------------


def test_the_command_prints_the_request(database: Path) -> None:
    """One line of UTF-8 JSON and nothing else, in any locale."""
    done = subprocess.run(
        [sys.executable, "-m", "web", "show", "--request", "turn-1/step-2", database],
        cwd=TREE,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stderr == b""
    text, _ = document_of(recorded(EVENTS), "turn-1/step-2")
    assert done.stdout == text.encode()


def test_json_and_the_environment_change_nothing(database: Path) -> None:
    """With --json it is the same document, and the id may come from the environment."""
    shown = run("show", database, "--request", "turn-2/step-2")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["messages"][0]["content"] == "instead"
    assert run("show", database, "--json", "--request", "turn-2/step-2").stdout == shown.stdout
    from_environment = run("show", database, SESSIOND_SHOW_REQUEST="turn-2/step-2")
    assert from_environment.stdout == shown.stdout
    assert run("show", database).stdout != shown.stdout


def test_the_session_is_the_one_asked_for(database: Path) -> None:
    """Each session of a file has Steps of its own."""
    talk = Conversation()
    write_rows(database, rows_of([talk.input("elsewhere"), talk.request()], "other"), "other")
    shown = run("show", database, "--session-id", "other", "--request", "turn-1/step-1")
    assert json.loads(shown.stdout)["messages"] == [{"role": "user", "content": "elsewhere"}]
    missing = run("show", database, "--session-id", "nobody", "--request", "turn-1/step-1")
    assert missing.exit_code == 1
    assert "there is no session nobody" in missing.stderr


def test_a_missing_step_is_one_line(database: Path) -> None:
    """Exit code 1 with the file, the Step and those there are; nothing on standard output."""
    done = sessiond("show", database, "--request", "turn-7/step-1")
    assert done.stdout == ""
    assert error_line(done) == (
        f"sessiond: error: {database}: session default has no turn-7/step-1; "
        "it has 4, turn-1/step-1 to turn-2/step-2; name another one with --request"
    )


def test_a_request_of_an_unsound_session_is_not_shown(tmp_path: Path) -> None:
    """What does not load is not put together either, wherever the fault is."""
    path = tmp_path / "damaged.sqlite3"
    rows = rows_of(EVENTS)
    rows[-1] = rows[-1]._replace(recorded_at="2001-01-01T00:00:00.000000Z")
    write_rows(path, rows)
    result = run("show", path, "--request", "turn-1/step-1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "the digest does not match" in result.stderr


def test_the_command_loads_no_event_loop(database: Path) -> None:
    """Like all of ``show`` it costs neither trio nor a web stack."""
    program = f"""
import sys
from web.cli import cli
cli(["show", {str(database)!r}, "--request", "turn-1/step-1"], standalone_mode=False)
heavy = {{"trio", "quart", "quart_trio", "hypercorn", "httpx", "structlog", "rich"}}
heavy &= set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TREE,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["turn_id"] == "turn-1"
