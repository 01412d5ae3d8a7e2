"""The real process, stopped and killed and started again: what was acknowledged is still there."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import httpx
import pytest
from process_support import (
    Document,
    HostProcess,
    error_line,
    public_directory,
    sessiond,
    sessiond_each,
    wait_until,
    wal_of,
)

from actors.reader import open_reader
from web.offline import verify_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KILLS_N = 10
KILLS_UNDER_STRESS_N = 200
CALLERS_N = 6
LONG_TEXT = "word " * 20_000
"""An echoed Turn of so many chunks does not end before a test has looked at it."""


def undated(session: Document) -> list[Document]:
    """The events without what differs between two runs of the same conversation: the clock."""
    return [
        {key: value for key, value in event.items() if key != "recorded_at"}
        for event in session["events"]
    ]


def message_of(event: Document) -> list[Document]:
    """The messages that an echoed conversation's event adds to the model history."""
    payload = event["payload"]
    if event["type"] == "user_input_accepted":
        return list(payload["messages"])
    if event["type"] == "assistant_message_committed" and payload["message"]["content"]:
        return [payload["message"]]
    return []


def history_at(events: Sequence[Document], sequence: int) -> list[Document]:
    return [message for event in events[:sequence] for message in message_of(event)]


def assert_gap_free(session: Document) -> None:
    """Sequences count from 1 without a gap, and every Turn and invocation id is there once."""
    events = session["events"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    inputs = [event["payload"] for event in events if event["type"] == "user_input_accepted"]
    assert [each["turn_id"] for each in inputs] == [f"turn-{n}" for n in range(1, len(inputs) + 1)]
    ids = [each["invocation_id"] for each in inputs]
    assert len(set(ids)) == len(ids)


def assert_requests_resolve(session: Document) -> None:
    """Each request names, by position and hash, the history of all events before it.

    A request therefore is the one that a process which never stopped would have made.
    """
    events = session["events"]
    for event in events:
        if event["type"] == "model_request_recorded":
            named = event["payload"]["messages"]
            history = history_at(events, named["through"])
            assert history == history_at(events, event["sequence"] - 1)
            text = json.dumps(history, ensure_ascii=False, separators=(",", ":"))
            assert named["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def assert_continues(session: Document, earlier: Document) -> None:
    """What was there is still there, unchanged, and only ever continued."""
    for part in ("events", "transcript"):
        assert session[part][: len(earlier[part])] == earlier[part]


# --- stop and start ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_clean_stop(tmp_path: Path, number: signal.Signals) -> None:
    """A signal to a Host at rest ends it with exit code 0; no -wal and no event is left behind."""
    database = tmp_path / "new" / "session.sqlite3"
    with HostProcess(database) as host:
        assert host.post("first", "hello").status_code == 200
        before = host.session()
        assert host.stop(number) == 0
    assert not wal_of(database).exists()
    assert "Traceback" not in host.errors
    shown = sessiond("show", database, "--json")
    assert json.loads(shown.stdout) == before


def test_restart_is_invisible(tmp_path: Path) -> None:
    """A conversation through three processes is, but for the clock, that of a single one."""
    texts = ["hello", "what did I say?", "ünd \x00 \U0001f600\n\nagain", "bye"]
    with HostProcess(tmp_path / "single.sqlite3") as single:
        answers = [single.post(f"id-{n}", text).json() for n, text in enumerate(texts)]
        expected = single.session()

    database = tmp_path / "restarted.sqlite3"
    earlier: Document = {"events": [], "transcript": []}
    for n, text in enumerate(texts):
        with HostProcess(database) as host:
            assert_continues(host.session(), earlier)
            assert host.post(f"id-{n}", text).json() == answers[n]
            earlier = host.session()
            assert host.stop() == 0
    assert undated(earlier) == undated(expected)
    assert earlier["transcript"] == expected["transcript"]
    assert_requests_resolve(earlier)


def test_other_session_is_announced(tmp_path: Path) -> None:
    """A session new in a file that holds others is announced with their ids, and they stay."""
    database = tmp_path / "shared.sqlite3"
    with HostProcess(database, "--session-id", "first.one") as host:
        assert host.post("a", "hello").status_code == 200
        first = host.session("first.one")
        assert host.stop() == 0
    with HostProcess(database, "--session-id", "second") as host:
        assert host.session("second")["events"] == []
        assert host.post("a", "hello").json()["turn_id"] == "turn-1"
        assert host.stop() == 0
    assert "first.one" in host.errors
    with HostProcess(database, "--session-id", "first.one") as host:
        assert host.session("first.one") == first
        assert host.stop() == 0
    assert "others" not in host.errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_during_a_turn(tmp_path: Path, number: signal.Signals) -> None:
    """A stop answers the running caller and the queued one, records the one and not the other."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host, ThreadPoolExecutor() as callers, host.client() as client:
        running = callers.submit(host.post, "running", LONG_TEXT)
        wait_until(lambda: last_sequence(client) > 5, host)
        queued = callers.submit(host.post, "queued", "hello")
        wait_until(lambda: invocation_state(client, "queued") == "queued", host)
        assert host.stop(number) == 0
        assert problem_of(running.result()) == (500, "interrupted")
        assert problem_of(queued.result()) == (503, "shutting_down")
    assert not wal_of(database).exists()
    stopped = json.loads(sessiond("show", database, "--json").stdout)
    assert stopped["events"][-1]["type"] == "step_failed"
    assert stopped["events"][-1]["payload"]["code"] == "interrupted"
    with HostProcess(database) as host:
        assert host.session() == stopped  # nothing was owed
        assert problem_of(host.post("running", LONG_TEXT)) == (500, "interrupted")
        assert host.post("queued", "hello").json()["turn_id"] == "turn-2"
        assert_gap_free(host.session())
        assert_requests_resolve(host.session())


# --- kill and start ---------------------------------------------------------------------------


def test_kill_during_a_turn(tmp_path: Path) -> None:
    """What a killed Turn owed is on record before the next process answers anybody."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host, ThreadPoolExecutor() as callers, host.client() as client:
        running = callers.submit(host.post, "killed", LONG_TEXT)
        wait_until(lambda: last_sequence(client) > 5, host)
        seen = host.session()
        host.kill()
        assert isinstance(running.exception(), httpx.TransportError)
    verified = sessiond("verify", database)
    assert verified.returncode == 0
    assert "unfinished: turn-1 of default" in verified.stdout
    with HostProcess(database) as host:
        recovered = host.session()
        assert_continues(recovered, seen)
        last = recovered["events"][-1]
        assert (last["type"], last["payload"]["code"]) == ("step_failed", "interrupted")
        assert problem_of(host.post("killed", LONG_TEXT)) == (500, "interrupted")
        assert problem_of(host.post("killed", "another text")) == (422, "invocation_mismatch")
        assert host.session() == recovered
        assert host.post("next", "hello").json()["turn_id"] == "turn-2"
        assert_requests_resolve(host.session())


def test_kill_at_random_instants(tmp_path: Path) -> None:
    """Killed anywhere and started again, a Host keeps all that it acknowledged, and no more."""
    survive_kills(tmp_path / "session.sqlite3", KILLS_N, secrets.randbits(32))


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_many_kills_at_random_instants(tmp_path: Path) -> None:
    """The same for a session that goes through a great many kills."""
    survive_kills(tmp_path / "session.sqlite3", KILLS_UNDER_STRESS_N, secrets.randbits(32))


def survive_kills(database: Path, kills_n: int, seed: int) -> None:
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)  # noqa: S311 # a test's dice
    caller = Caller(chance)
    earlier: Document = {"events": [], "transcript": []}
    for _ in range(kills_n):
        with HostProcess(database) as host:
            if chance.random() < 0.2:
                host.kill()  # while it starts, on a file that the last kill left
                continue
            session = host.session()
            assert_continues(session, earlier)
            caller.assert_remembered(host)
            with ThreadPoolExecutor(CALLERS_N) as callers, host.client() as client:
                target = session["last_sequence"] + chance.randrange(1, 120)
                calling = [
                    callers.submit(caller.call_until_killed, host.url) for _ in range(CALLERS_N)
                ]
                wait_until(lambda: last_sequence(client) >= target, host)  # noqa: B023 # ends here
                earlier = host.session()
                if chance.random() < 0.3:
                    host.send(signal.SIGTERM)  # and then killed while it stops
                    if chance.random() < 0.5:
                        wait_until(lambda: "stop requested" in host.errors, host)  # so does this
                host.kill_or_ended()
                for each in calling:
                    each.result()
        with open_reader(database) as reader:
            assert [report.fault for report in verify_sessions(reader)] == [None]
    with HostProcess(database) as host:
        session = host.session()
        assert_continues(session, earlier)
        caller.assert_remembered(host)
        assert host.session() == session  # asking again ran nothing
        assert_gap_free(session)
        assert_requests_resolve(session)
        assert host.stop() == 0
    assert not wal_of(database).exists()


class Caller:
    """Asks for Turns, from several threads at once, and keeps what it was told."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = count(1)
        self._answered: dict[str, tuple[str, int, Document]] = {}

    def call_until_killed(self, url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            for n in self._numbers:
                text = f"turn {n}: " + "word " * self._chance.randrange(40)
                try:
                    response = client.post(
                        f"/api/v1/agent/invocations/call-{n}", json={"input": text}
                    )
                except httpx.TransportError:
                    return
                answer = response.json()
                if answer.get("code") == "shutting_down":
                    continue  # never begun: it may be asked for again
                assert response.status_code == 200 or answer["code"] == "interrupted", answer
                self._answered[f"call-{n}"] = (text, response.status_code, answer)

    def assert_remembered(self, host: HostProcess) -> None:
        with host.client() as client:
            for invocation_id, (text, status, answer) in self._answered.items():
                again = client.post(
                    f"/api/v1/agent/invocations/{invocation_id}", json={"input": text}
                )
                assert (again.status_code, again.json()) == (status, answer)


def last_sequence(client: httpx.Client) -> int:
    return int(client.get("/health").json()["last_sequence"])


def invocation_state(client: httpx.Client, invocation_id: str) -> str | None:
    response = client.get(f"/api/v1/agent/invocations/{invocation_id}")
    state: str | None = response.json().get("state")
    return state


def problem_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


# --- the offline commands and a Host ----------------------------------------------------------


def test_offline_commands_beside_a_host(tmp_path: Path) -> None:
    """While a Host runs and after it was killed, its file can be read, judged and copied."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host:
        assert host.post("a", "hello").status_code == 200
        session = host.session()
        assert_readable(database, session, tmp_path / "of-running.sqlite3")
        assert host.post("b", "still there?").status_code == 200
        session = host.session()
        host.kill()
    assert wal_of(database).stat().st_size > 0  # or nothing was at stake
    assert_readable(database, session, tmp_path / "of-killed.sqlite3")
    with HostProcess(tmp_path / "of-killed.sqlite3") as host:
        assert host.session() == session  # a backup is a database


def assert_readable(database: Path, session: Document, copy: Path) -> None:
    shown, exported, verified, copied, shown_copy = sessiond_each(
        [
            ["show", database, "--json"],
            ["export", database],
            ["verify", database],
            ["backup", database, copy],
            ["show", copy, "--json"],
        ]
    )
    assert json.loads(shown.stdout) == session
    assert list(map(json.loads, exported.stdout.splitlines())) == session["events"]
    assert verified.stdout.startswith("ok: ")
    assert copied.returncode == 0, copied.stderr
    assert json.loads(shown_copy.stdout) == session


@pytest.mark.parametrize("killed", [False, True])
def test_offline_in_read_only_directory(tmp_path: Path, *, killed: bool) -> None:
    """Every offline command works on a copy where nothing can be written, -wal or not."""
    with HostProcess(tmp_path / "session.sqlite3") as host:
        assert host.post("a", "hello").status_code == 200
        session = host.session()
        if killed:
            host.kill()
        else:
            assert host.stop() == 0
    names = ["session.sqlite3", *(["session.sqlite3-wal"] if killed else [])]
    with public_directory() as directory, public_directory() as elsewhere:
        for name in names:
            shutil.copy(tmp_path / name, directory)
            (directory / name).chmod(0o444)
        directory.chmod(0o555)
        elsewhere.chmod(0o777)
        database, copy = directory / "session.sqlite3", elsewhere / "copy.sqlite3"

        beside = directory / "copy.sqlite3"
        shown, exported, verified, refused, copied = sessiond_each(
            [
                ["show", database, "--json"],
                ["export", database],
                ["verify", database],
                ["backup", database, beside],
                ["backup", database, copy],
            ],
            as_nobody=True,
        )
        assert json.loads(shown.stdout) == session
        assert list(map(json.loads, exported.stdout.splitlines())) == session["events"]
        assert verified.stdout.startswith("ok: ")
        assert str(beside) in error_line(refused)
        assert copied.returncode == 0, copied.stderr
        assert sorted(path.name for path in directory.iterdir()) == names
        assert json.loads(sessiond("show", copy, "--json").stdout) == session
