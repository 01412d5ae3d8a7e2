"""The log of a Host: a line an event, with its place, and with nothing of what was said."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import trio
from log_support import Conversation, rows_of, write_rows
from process_support import HostProcess
from provider_server import Refuses, Says, Wants, strict_provider

from actors import recording
from actors.errors import AppendFailed
from actors.recording import record
from actors.session_log import open_session_log
from web.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from web.logs import LogFormat

Line = dict[str, Any]
SAID = "PLAINWORD"
"""Stands in everything that is said: texts, arguments, results, names, ids and reasons."""
KEY = "sk-0123456789abcdef-KEY"


def lines_of(errors: str) -> list[Line]:
    """Take a log apart: each line of it is one JSON object."""
    lines: list[Line] = [json.loads(line) for line in errors.splitlines()]
    for line in lines:
        assert {"event", "level", "timestamp"} <= line.keys(), line
    return lines


def event_lines(lines: list[Line], invocation: str) -> list[Line]:
    """Return the lines of a Turn, from its start to its invocation's end."""
    names = [(line["event"], line.get("invocation")) for line in lines]
    start = names.index(("invocation queued", invocation))
    return lines[start : names.index(("invocation settled", invocation)) + 1]


# --- a real Host --------------------------------------------------------------------------------

CALLS = (
    Wants("clock", '{"zone": "Europe/Berlin"}'),
    Wants("recall", f'{{"query": "{SAID}"}}'),
    Wants(f"tool-{SAID}", f'{{"{SAID}": 1}}', id=f"call-{SAID}"),
)
SCRIPT = (
    Says(f"let me {SAID}", CALLS),
    Says(f"done {SAID}", finish_reason=f"because-{SAID}"),
    Refuses(message=f"no {SAID}"),
)


async def test_a_log_of_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Turn with tools, one that fails, and a stop: each event has its line, in their order.

    Each names session, turn, step and sequence as far as there are such; none holds a word of
    what was said, nor the key.
    """
    monkeypatch.setenv("THE_KEY", KEY)
    database = tmp_path / "session.sqlite3"
    async with strict_provider(SCRIPT, KEY) as provider:
        options = ("--model-url", provider.url, "--model", "m", "--model-key-env", "THE_KEY")
        with HostProcess(
            database, *options, "--log-format", "json", "--system-prompt", SAID
        ) as host:
            good = await trio.to_thread.run_sync(host.post, "good", f"say {SAID}")
            bad = await trio.to_thread.run_sync(host.post, "bad", f"again {SAID}")
            events = (await trio.to_thread.run_sync(host.session))["events"]
            assert await trio.to_thread.run_sync(host.stop) == 0
    assert (good.status_code, bad.status_code) == (200, 502)
    assert not provider.complaints
    assert SAID not in host.errors
    assert KEY not in host.errors
    lines = lines_of(host.errors)

    assert_turn_of(event_lines(lines, "good"), events)
    failed = event_lines(lines, "bad")
    assert [line["event"] for line in failed][-2:] == ["turn failed", "invocation settled"]
    assert failed[-2]["code"] == failed[-1]["code"] == "provider_error"
    assert failed[-2]["level"] == "warning"
    assert [line["event"] for line in lines][:3] == ["session opened", "listening", "host started"]
    assert lines[2]["process"] == host.pid
    told = [line["event"] for line in lines if "invocation" not in line and "turn" not in line]
    assert told[-5:] == [
        "stop requested",
        "invocations settled",
        "listener closed",
        "session closing",
        "session closed",
    ]
    assert lines[-1]["sequence"] == len(events)


def assert_turn_of(told: list[Line], events: list[Line]) -> None:
    """Check that the lines of a Turn are those of its events, chunks left out, place by place."""
    named = {
        "user_input_accepted": "turn started",
        "model_request_recorded": "step requested",
        "tool_execution_started": "tool started",
        "tool_execution_completed": "tool completed",
    }
    expected: list[Line] = []
    for event in events:
        kind, payload = event["type"], event["payload"]
        if kind == "model_chunk_recorded":
            continue
        is_last = kind == "assistant_message_committed" and not payload["message"]["tool_calls"]
        answered = "turn finished" if is_last else "step answered"
        line = {
            "event": named.get(kind, answered),
            "session": "default",
            "turn": "turn-1",
            "sequence": event["sequence"],
        }
        expected.append(line | ({"step": payload["step_id"]} if "step_id" in payload else {}))
        if is_last:
            break
    first, *rest, last = told
    assert first["event"] == "invocation queued"
    assert last["state"] == "completed"
    assert (last["turn"], last["sequence"]) == ("turn-1", expected[-1]["sequence"])
    place = ("event", "session", "turn", "step", "sequence")
    assert [{key: line[key] for key in place if key in line} for line in rest] == expected
    tools = [(line["tool"], line.get("outcome")) for line in rest if "tool" in line]
    assert tools == [
        ("clock", None),
        ("clock", "result"),
        ("recall", None),
        ("recall", "result"),
        ("(unknown)", None),
        ("(unknown)", "unknown_tool"),
    ]
    assert {line["finish_reason"] for line in rest if "finish_reason" in line} == {
        "tool_calls",
        "(other)",
    }


def test_a_log_of_a_recovery(tmp_path: Path) -> None:
    """What a start records of an unfinished Turn is told event by event, and then as a whole."""
    conversation = Conversation()
    events = [conversation.input(), conversation.request(), conversation.answer("", calls_n=2)]
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows_of([*events, conversation.start()]))
    with HostProcess(database, "--log-format", "json") as host:
        assert host.url
        assert host.stop() == 0
    lines = lines_of(host.errors)
    told = [(line["event"], line.get("sequence")) for line in lines[:5]]
    assert told == [
        ("session opened", 4),
        ("tool completed", 5),
        ("tool completed", 6),
        ("turn failed", 7),
        ("recovery recorded", 7),
    ]
    assert [line["outcome"] for line in lines[1:3]] == ["interrupted", "not_executed"]


def test_a_console_log_is_one_line_an_event(tmp_path: Path) -> None:
    """In the console's form too each line begins with its time, and none steers the terminal."""
    with HostProcess(tmp_path / "a\x1b[2J\nb.sqlite3") as host:
        assert host.post("one", "hello").status_code == 200
        assert host.stop() == 0
    lines = host.errors.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+Z \[\w+ *\] ", line) for line in lines), lines
    assert "\x1b" not in host.errors
    assert r"a\x1b[2J\nb.sqlite3" in host.errors


def test_a_failure_stays_one_line(tmp_path: Path) -> None:
    """A start that is refused says why in one line, and nothing else."""
    with HostProcess(tmp_path, "--log-format", "json") as host:
        assert host.wait() == 1
    assert (
        host.errors
        == f"sessiond: error: {tmp_path}: is a directory; name a file in it as --session-db\n"
    )


# --- in this process ----------------------------------------------------------------------------


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Generator[io.StringIO, None, None]:
    """What is logged during the test; afterwards logging is as it was."""
    out = io.StringIO()
    monkeypatch.setattr("web.logs.write_error", out.write)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    before = structlog.get_config()
    yield out
    structlog.configure(**before)


def configure(monkeypatch: pytest.MonkeyPatch, log_format: LogFormat, level: str = "info") -> None:
    """Configure the logs, for loggers that may have been used before."""
    configure_logs(log_format, level)
    monkeypatch.setattr(recording, "_log", structlog.get_logger())


async def test_commits_that_fail_and_succeed_again(
    tmp_path: Path, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed commit is told with the sequence it was for, and so is the first that succeeds."""
    configure(monkeypatch, "json")
    database, away = tmp_path / "session.sqlite3", tmp_path / "away.sqlite3"
    conversation = Conversation()
    async with open_session_log("default", database) as log:
        await record(log, conversation.input())
        database.rename(away)
        request = conversation.request()
        for _ in range(2):
            with pytest.raises(AppendFailed):
                await record(log, request)
        away.rename(database)
        await record(log, request)
        await record(log, conversation.answer())
    told = [
        (line["event"], line["level"], line["sequence"]) for line in lines_of(logged.getvalue())
    ]
    assert told == [
        ("turn started", "info", 1),
        ("commit failed", "error", 2),
        ("commit failed", "error", 2),
        ("commits succeed again", "info", 2),
        ("step requested", "info", 2),
        ("turn finished", "info", 3),
    ]


async def test_chunks_are_told_at_debug(
    logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At debug each chunk has a line with its place and its size, and still none of its words."""
    configure(monkeypatch, "json", "debug")
    conversation = Conversation()
    async with open_session_log("default") as log:
        await record(log, conversation.input(), conversation.request())
        await record(log, conversation.chunk(SAID))
    line = lines_of(logged.getvalue())[-1]
    assert line["event"] == "chunk recorded"
    assert (line["step"], line["sequence"]) == ("turn-1/step-1", 3)
    assert line["characters"] == len(json.dumps(SAID))
    assert SAID not in logged.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_unexpected_error(
    log_format: LogFormat, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback is told without the values in its frames, as JSON in its one line."""
    configure(monkeypatch, log_format)

    def fail(_said: str) -> None:
        raise ValueError("bad \x1b[2J luck")

    try:
        fail(SAID)
    except ValueError:
        structlog.get_logger().exception("request failed", path="/a\nb")
    told = logged.getvalue()
    assert SAID not in told
    assert "\x1b[2J" not in told
    assert "ValueError: bad" in told
    if log_format == "json":
        (line,) = lines_of(told)
        assert "Traceback" in line["exception"]
    else:
        first, second, *_ = told.splitlines()
        assert r"path='/a\\nb'" in first or r"path=/a\nb" in first
        assert second.startswith("Traceback")


def test_what_libraries_say(logged: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning by way of Python's own logging is one of our lines, not one of another form."""
    configure(monkeypatch, "json")
    library = logging.getLogger("a.library")
    monkeypatch.setattr(library, "propagate", False)
    library.warning("%s descriptors\nleft", 0)
    library.info("chatter")
    (line,) = lines_of(logged.getvalue())
    assert (line["event"], line["level"]) == ("0 descriptors\nleft", "warning")
    assert line["logger"] == "a.library"
