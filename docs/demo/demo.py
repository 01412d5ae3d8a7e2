"""A Turn with several tool calls, a ``kill -9`` in its middle, and the restart.

``just demo``, or ``python docs/demo/demo.py``. Real Hosts on a file in a temporary directory; the
model's part is played from ``session.jsonl`` beside this file, so it needs no network and no key.
Ends with 0 if all went as it is told, else with 1 and a line that says what did not.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from claims import CUT_STEP, broken_claims
from processes import PATIENCE_S, DemoFailed, Host, Processes, Stopped
from telling import command, say, scene, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from telling import Event

SCRIPT = Path(__file__).with_name("session.jsonl")
CHUNKS_BEFORE_KILL = 40
ATTEMPTS_N = 5
"""A busy machine may let the stream end before the kill comes; the scene is then played anew."""
POLL_S = 0.005
EXIT_FAILURE = 1
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE, as a shell reports it


# --- a client -----------------------------------------------------------------------------------


class Client:
    """Follows the session over HTTP, through the Hosts that come and go."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.events: list[Event] = []
        """All that was seen so far."""

    def catch_up(self, host: Host) -> list[Event]:
        """Return the events that are new, having told them."""
        new: list[Event] = self._session(host, len(self.events))
        tell(new)
        self.events += new
        return new

    def recorded(self, host: Host) -> list[Event]:
        """Return all events as the Host has them now."""
        return self._session(host, 0)

    def invoke(self, host: Host, invocation_id: str, text: str) -> httpx.Response:
        """Ask for a Turn and wait for its outcome."""
        url = f"{host.url}/api/v1/agent/invocations/{invocation_id}"
        return self._http.post(url, json={"input": text})

    def _session(self, host: Host, after: int) -> list[Event]:
        answer = self._http.get(f"{host.url}/api/v1/sessions/default", params={"after": after})
        events: list[Event] = answer.raise_for_status().json()["events"]
        return events


class Invocation(threading.Thread):
    """A Turn that is asked for in a thread of its own; :meth:`outcome` waits for it."""

    def __init__(self, client: Client, host: Host, invocation_id: str, text: str) -> None:
        """Ask for it."""
        super().__init__(daemon=True)
        self._ask: Callable[[], httpx.Response] = lambda: client.invoke(host, invocation_id, text)
        self._outcome: httpx.Response | httpx.TransportError | None = None
        self.start()

    def run(self) -> None:
        """Wait for the answer, or for the connection's end."""
        try:
            self._outcome = self._ask()
        except httpx.TransportError as error:
            self._outcome = error

    def outcome(self) -> httpx.Response | httpx.TransportError:
        """Return the answer, or how the connection ended.

        Raises:
            DemoFailed: neither comes.
        """
        self.join(PATIENCE_S)
        if self._outcome is None:
            raise DemoFailed("an invocation was neither answered nor cut off")
        return self._outcome


def expect(condition: bool, otherwise: str) -> None:
    """Go on only if all is as told.

    Raises:
        DemoFailed: it is not.
    """
    if not condition:
        raise DemoFailed(otherwise)


# --- the story ----------------------------------------------------------------------------------


class Demo:
    """The scenes, in their order."""

    def __init__(self, processes: Processes, client: Client, directory: Path) -> None:
        self._processes = processes
        self._client = client
        self._directory = directory
        self._database = directory / "session.sqlite3"
        self._hosts_n = 0
        self.first, self.second = _inputs()

    def play(self) -> bool:
        """Play it; False if the first Turn had ended before the kill came."""
        scene("A Host, and a turn that needs two tools")
        killed = self._host()
        if not self._kill_in_the_middle(killed):
            return False
        scene("What the kill left in the file")
        if "unfinished: turn-1" not in self._offline("verify"):
            return False
        scene("The same command again: recovery comes before anybody is answered")
        host = self._host()
        self._recovered(host)
        scene("The same invocation id once more: the recorded outcome, nothing runs again")
        self._ask_again(host)
        scene("The session goes on")
        self._next_turn(host)
        events = self._client.recorded(host)
        scene("A clean stop, and what is in the file")
        host.stop()
        say(f"kill -TERM {host.pid}: exit code 0")
        verified, shown = self._offline("verify"), self._offline("show")
        self._check(events, verified, shown)
        return True

    def _host(self) -> Host:
        self._hosts_n += 1
        options = ("--session-db", self._database, "--port", "0", "--model-replay", SCRIPT)
        command("serve", *options)
        log = self._directory / f"host-{self._hosts_n}.log"
        host = Host(self._processes, *options, log=log)
        say(f"sessiond listening on {host.url}  (process {host.pid})")
        return host

    def _kill_in_the_middle(self, host: Host) -> bool:
        """Have the first Turn asked for, and kill the Host once it streams; False if too late."""
        invocation = Invocation(self._client, host, "first", self.first)
        deadline = time.monotonic() + PATIENCE_S
        chunks_n = 0
        while chunks_n < CHUNKS_BEFORE_KILL:
            expect(time.monotonic() < deadline, f"{CUT_STEP} does not stream")
            new = self._client.catch_up(host)
            if any(event["type"] == "step_failed" for event in new):
                return False
            chunks_n += len(_chunks_of_cut_step(new))
            time.sleep(POLL_S)  # not to take the processor from the Host
        host.kill()
        say(f"kill -9 {host.pid}", "1;31")
        outcome = invocation.outcome()
        if isinstance(outcome, httpx.Response):
            return False
        say("The caller has no answer: its connection is gone.")
        return True

    def _recovered(self, host: Host) -> None:
        seen = list(self._client.events)
        self._client.catch_up(host)
        end = self._client.events[-1]
        expect(end["type"] == "step_failed", "recovery has not closed the turn")
        kept = self._client.recorded(host)[: len(seen)] == seen
        expect(kept, "what was seen before the kill is not what is on record now")
        chunks_n = len(_chunks_of_cut_step(self._client.events))
        say(f"All {len(seen)} events seen before the kill are there, unchanged; {chunks_n} of the")
        say("model's chunks had reached the disk; recovery has closed the turn as interrupted.")

    def _ask_again(self, host: Host) -> None:
        answer = self._client.invoke(host, "first", self.first)
        say(f"  HTTP {answer.status_code}: {answer.text}")
        expect(answer.json().get("code") == "interrupted", "the outcome is not `interrupted`")
        new_n = len(self._client.catch_up(host))
        expect(new_n == 0, f"asking again left {new_n} events")
        say("  No event came of it.")

    def _next_turn(self, host: Host) -> None:
        answer = self._client.invoke(host, "second", self.second)
        self._client.catch_up(host)
        body = answer.json()
        expect(answer.status_code == 200, f"the second turn failed: {body.get('detail')}")
        say()
        say(body["message"]["content"], "32")

    def _offline(self, name: str) -> str:
        command(name, self._database)
        output = self._processes.run(name, self._database, log=self._directory / f"{name}.log")
        say(output.rstrip("\n"))
        return output

    def _check(self, events: Sequence[Event], verified: str, shown: str) -> None:
        expect(events == self._client.events, "the session is not what was seen of it")
        expect(verified.startswith("ok: "), f"verify says: {verified}")
        broken = broken_claims(events)
        expect(not broken, "; ".join(broken))
        answer = events[-1]["payload"]["message"]["content"]
        expect(answer in shown, "the transcript lacks the second turn's answer")


def _inputs() -> tuple[str, str]:
    """Return the two texts that the recording has an answer to.

    Raises:
        DemoFailed: it cannot be read.
    """
    try:
        lines = SCRIPT.read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DemoFailed(f"{SCRIPT}: {error}") from error
    texts = [
        str(event["payload"]["messages"][0]["content"])
        for event in events
        if event["type"] == "user_input_accepted"
    ]
    expect(len(texts) == 2, f"{SCRIPT}: {len(texts)} turns, not 2")
    return texts[0], texts[1]


def _chunks_of_cut_step(events: Sequence[Event]) -> list[Event]:
    return [
        event
        for event in events
        if event["type"] == "model_chunk_recorded" and event["payload"]["step_id"] == CUT_STEP
    ]


def _play(processes: Processes, client: httpx.Client, directory: Path) -> None:
    for attempt in range(1, ATTEMPTS_N + 1):
        here = directory / f"{attempt}"
        here.mkdir()
        if Demo(processes, Client(client), here).play():
            return
        say("The model was done before the kill came. Once more, on a new file.", "33")
    raise DemoFailed(f"in {ATTEMPTS_N} attempts the kill never came in time")


def main() -> int:
    """Play the demo and return its exit code."""
    try:
        processes = Processes()
        # The processes end first: whoever waits for an answer of theirs is released then.
        with (
            httpx.Client(trust_env=False, timeout=PATIENCE_S) as client,
            tempfile.TemporaryDirectory(prefix="sessiond-demo-") as name,
            processes,
        ):
            _play(processes, client, Path(name))
        say()
        say("All as told: killed in the middle, every call answered once and started at most once,")
        say("the cut turn recorded as interrupted, the next one complete, the file sound.", "1;32")
    except BrokenPipeError:
        # Whoever read has enough. Python would try to write the rest at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except (DemoFailed, httpx.HTTPError, OSError) as error:
        sys.stderr.write(f"demo: failed: {error}\n")
        return EXIT_FAILURE
    except Stopped as stopped:
        sys.stderr.write(f"demo: {stopped}\n")
        return 128 + stopped.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
