"""The demo keeps its word: it shows what it says it shows, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from process_support import PATIENCE_S, TREE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Event = dict[str, Any]

DEMO = TREE / "docs" / "demo"
SCRIPT = DEMO / "session.jsonl"
SCRIPT_BYTES_MAX = 400_000


@contextmanager
def demo_process(
    place: Path, directory: Path = DEMO
) -> Generator[subprocess.Popen[str], None, None]:
    """The demo in a process group of its own, with its temporary files in ``place``.

    What a demo that broke its word has left is ended at the end.
    """
    place.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, directory / "demo.py"],
        env=os.environ | {"TMPDIR": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if group_lives(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def group_lives(group_id: int) -> bool:
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return False
    return True


def assert_nothing_left(process: subprocess.Popen[str], place: Path) -> None:
    assert not group_lives(process.pid), "a process of the demo is alive"
    assert list(place.iterdir()) == []


def demo_module(name: str) -> Any:
    """Return a module of the demo, which is no package."""
    spec = importlib.util.spec_from_file_location(f"demo_{name}", DEMO / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the demo -----------------------------------------------------------------------------------


def test_demo(tmp_path: Path) -> None:
    """It shows the kill, the recovery and the next answer, in plain text, and ends with 0."""
    with demo_process(tmp_path / "place") as process:
        told, errors = process.communicate(timeout=2 * PATIENCE_S)
        assert_nothing_left(process, tmp_path / "place")
    assert (process.returncode, errors) == (0, ""), told
    assert "\x1b" not in told
    # The last attempt, where a busy machine needed more than one.
    told = told[told.rindex("a turn that needs two tools") :]
    in_order = [
        "the model calls clock, recall",
        "call-time is answered: {",
        "call-lighthouse is answered: {",
        "kill -9 ",
        "unfinished: turn-1 of default",
        "turn-1/step-2 failed, interrupted: ",
        '"code":"interrupted"',
        "No event came of it.",
        "the model has answered",
        "in turn 1 you asked for",
        "ok: ",
        "All as told: ",
    ]
    place = 0
    for each in in_order:
        place = told.find(each, place)
        assert place >= 0, f"{each!r} is missing, or in another place:\n{told}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_demo(tmp_path: Path, number: signal.Signals) -> None:
    """A signal ends it with the shell's code for that signal, and its Host with it."""
    with demo_process(tmp_path / "place") as process:
        assert process.stdout is not None
        assert any("chunk" in line for line in process.stdout)  # read until it streams
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert_nothing_left(process, tmp_path / "place")
    assert process.returncode == 128 + number
    assert errors == f"demo: stopped by {number.name}\n"


def test_demo_without_reader(tmp_path: Path) -> None:
    """Nobody reading any more ends it, without a complaint."""
    with demo_process(tmp_path / "place") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "\n"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == ""
        assert_nothing_left(process, tmp_path / "place")


def test_demo_that_fails(tmp_path: Path) -> None:
    """A recording that a Host refuses ends it with 1 and one line that says why."""
    copied = shutil.copytree(DEMO, tmp_path / "demo", ignore=shutil.ignore_patterns("__pycache__"))
    script = copied / "session.jsonl"
    lines = script.read_text(encoding="utf-8").splitlines(keepends=True)
    script.write_text("".join(lines[:3] + lines[4:]), encoding="utf-8")  # a gap
    with demo_process(tmp_path / "place", copied) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert_nothing_left(process, tmp_path / "place")
    assert process.returncode == 1
    assert errors.startswith("demo: failed: the Host did not start: ")
    assert "line 4: sequence 5 where 4 must come" in errors
    assert errors.count("\n") == 1


# --- what it is made of -------------------------------------------------------------------------


def test_script_is_made(tmp_path: Path) -> None:
    """The recording is, to the byte, what its maker writes, and small enough to keep."""
    made = tmp_path / "session.jsonl"
    subprocess.run([sys.executable, DEMO / "make_session.py", made], check=True, timeout=PATIENCE_S)
    assert made.read_bytes() == SCRIPT.read_bytes(), "run docs/demo/make_session.py"
    assert len(made.read_bytes()) < SCRIPT_BYTES_MAX


def recorded() -> list[Event]:
    return [json.loads(line) for line in SCRIPT.read_text(encoding="utf-8").splitlines()]


def test_claims_hold() -> None:
    """The recording itself is a session as the demo wants to leave one."""
    assert demo_module("claims").broken_claims(recorded()) == []


def repeat(event_type: str) -> Callable[[list[Event]], None]:
    """Return what records the first event of a type a second time."""

    def change(events: list[Event]) -> None:
        index = next(n for n, event in enumerate(events) if event["type"] == event_type)
        events.insert(index, deepcopy(events[index]))
        for sequence, event in enumerate(events, 1):
            event["sequence"] = sequence

    return change


def first(events: list[Event], event_type: str) -> Event:
    return next(event["payload"] for event in events if event["type"] == event_type)


def fail_a_tool(events: list[Event]) -> None:
    payload = first(events, "tool_execution_completed")
    del payload["result"]
    payload["error"] = {"code": "handler_error", "message": "no such zone"}


def fail_otherwise(events: list[Event]) -> None:
    first(events, "step_failed")["code"] = "provider_error"


def answer_another_call(events: list[Event]) -> None:
    first(events, "tool_execution_completed")["call_id"] = "call-other"


def lose_an_event(events: list[Event]) -> None:
    del events[20]


def lose_the_answer(events: list[Event]) -> None:
    events.pop()


def answer_the_cut_step(events: list[Event]) -> None:
    first(events, "assistant_message_committed")["step_id"] = "turn-1/step-2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (repeat("tool_execution_started"), ["call-time was started 2 times"]),
        (repeat("tool_execution_completed"), ["call-time was answered 2 times"]),
        (
            answer_another_call,
            ["call-time was answered 0 times", "nobody asked for call-other"],
        ),
        (fail_a_tool, ["call-time came to an error: no such zone"]),
        (fail_otherwise, ["turn-1 is recorded as [('turn-1/step-2', 'provider_error')]"]),
        (lose_an_event, ["the sequences do not count from 1 without a gap"]),
        (lose_the_answer, ["the session does not end with an answer"]),
        (answer_the_cut_step, ["turn-1/step-2 has a message though it was cut short"]),
    ],
)
def test_broken_claims(change: Callable[[list[Event]], None], told: list[str]) -> None:
    """Whatever is not as told is told, that and nothing else."""
    events = recorded()
    change(events)
    broken = demo_module("claims").broken_claims(events)
    assert len(broken) == len(told), broken
    for line, expected in zip(broken, told, strict=True):
        assert line.startswith(expected)
