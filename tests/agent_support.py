"""What the tests of Turns share: a scripted model, a store that fails, and cuts at every point."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import trio
from attrs import define, field

from actors.events import (
    AssistantMessageCommitted,
    ModelRequestRecorded,
    StepFailed,
    UserInputAccepted,
)
from actors.routes import (
    Adapter,
    Chunk,
    ModelFailure,
    ModelOutput,
    ModelRequest,
    ModelResponse,
    RouteTable,
)
from actors.store import MemoryStore, Store
from actors.values import AssistantMessage, Json, Route, ToolCall, ToolMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    import pytest

    from actors.errors import StoreError
    from actors.rows import Row
    from actors.snapshot import Snapshot

TIMEOUT_S = 30
SCRIPTED = Route("scripted", "one")


@define(eq=False)
class Gate:
    """A point of a script at which the model waits until it is let on."""

    reached: trio.Event = field(factory=trio.Event)
    go: trio.Event = field(factory=trio.Event)


Script: TypeAlias = "Sequence[ModelOutput | BaseException | Gate]"


@define(eq=False)
class ScriptedAdapter:
    """Plays one script a request, the last one for ever, and keeps what it was asked."""

    scripts: list[Script]
    requests: list[ModelRequest] = field(factory=list[ModelRequest])
    closed_n: int = 0
    fails_on_close: bool = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            for item in script:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Gate):
                    item.reached.set()
                    await item.go.wait()
                else:
                    yield item
        finally:
            self.closed_n += 1
            if self.fails_on_close:
                raise OSError("the connection could not be closed")


def scripted(*scripts: Script) -> ScriptedAdapter:
    return ScriptedAdapter(list(scripts))


def routes_to(adapter: Adapter) -> RouteTable:
    return RouteTable(SCRIPTED, {SCRIPTED: adapter})


def chunk(value: object = "word") -> Chunk:
    return Chunk(Json.of(value))


def says(text: str) -> ModelResponse:
    return ModelResponse(AssistantMessage(text), "stop")


def calls(*call_ids: str) -> ModelResponse:
    wanted = tuple(ToolCall(call_id, "lookup", '{"q": 1}') for call_id in call_ids)
    return ModelResponse(AssistantMessage("", wanted), "tool_calls")


def fails(code: str = "provider_error") -> ModelFailure:
    return ModelFailure(code, "no answer")


def tags(snapshot: Snapshot) -> list[str]:
    return [envelope.event.tag for envelope in snapshot]


def recorded_code(snapshot: Snapshot) -> str | None:
    """Return the code of the failure that the session ends with, None if it ends otherwise."""
    last = snapshot[-1].event if len(snapshot) else None
    return last.code if isinstance(last, StepFailed) else None


def assert_nothing_owed(snapshot: Snapshot) -> None:
    """Check, on the events themselves, that every Turn has its end and every call its answer."""
    inputs = [e for e in snapshot if isinstance(e.event, UserInputAccepted)]
    ends = [
        e
        for e in snapshot
        if isinstance(e.event, StepFailed)
        or (isinstance(e.event, AssistantMessageCommitted) and not e.event.message.tool_calls)
    ]
    assert len(inputs) == len(ends)
    assert all(a.sequence < b.sequence for a, b in zip(inputs, ends, strict=True))
    history = snapshot.model_history()
    asked = [c.id for m in history if isinstance(m, AssistantMessage) for c in m.tool_calls]
    assert [m.tool_call_id for m in history if isinstance(m, ToolMessage)] == asked
    assert snapshot.open_turn is None


def requested_n(snapshot: Snapshot) -> int:
    return sum(isinstance(envelope.event, ModelRequestRecorded) for envelope in snapshot)


class CutAfterSteps(trio.abc.Instrument):
    """Cancels a scope once the task has been scheduled so often: at any of its checkpoints."""

    def __init__(self, task: trio.lowlevel.Task, steps_n: int, scope: trio.CancelScope) -> None:
        self._task = task
        self._left_n = steps_n
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left_n -= 1
            if self._left_n == 0:
                self._scope.cancel()


class CallAtStep(trio.abc.Instrument):
    """Calls something just before the ``step_n``-th task step of the whole run from here."""

    def __init__(self, step_n: int, call: Callable[[], None]) -> None:
        self.called = False
        self._left_n = step_n
        self._call = call

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 # whichever
        self._left_n -= 1
        if self._left_n == 0:
            self.called = True
            self._call()


@contextmanager
def calling_at(step_n: int, call: Callable[[], None]) -> Generator[CallAtStep, None, None]:
    """Have ``call`` called between two steps of any tasks: at each place where one could act."""
    instrument = CallAtStep(step_n, call)
    trio.lowlevel.add_instrument(instrument)
    try:
        yield instrument
    finally:
        trio.lowlevel.remove_instrument(instrument)


@contextmanager
def cut_after(steps_n: int, scope: trio.CancelScope) -> Generator[None, None, None]:
    """Have ``scope`` cancelled when this task has been scheduled ``steps_n`` times from here."""
    if steps_n == 0:
        scope.cancel()
    instrument = CutAfterSteps(trio.lowlevel.current_task(), steps_n, scope)
    trio.lowlevel.add_instrument(instrument)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(instrument)


class FailingCommits:
    """Makes chosen commits of every store fail, counted from 1 over the whole test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried_n = 0
        self.failing: dict[int, type[StoreError]] = {}
        self.all_from: tuple[int, type[StoreError]] | None = None
        for kind in (MemoryStore, Store):
            self._patch(monkeypatch, kind)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, kind: type[MemoryStore | Store]) -> None:
        real = kind.commit

        def commit(store: MemoryStore, rows: Sequence[Row]) -> None:
            self.tried_n += 1
            error = self.failing.get(self.tried_n)
            if self.all_from is not None and self.tried_n >= self.all_from[0]:
                error = self.all_from[1]
            if error is not None:
                raise error("the disk said no", "/secret/path")
            real(store, rows)  # pyright: ignore[reportArgumentType] # of the kind patched

        monkeypatch.setattr(kind, "commit", commit)

    def mend(self) -> None:
        self.failing.clear()
        self.all_from = None


@contextmanager
def full_disk() -> Generator[None, None, None]:
    """Let this process write no file beyond its first page, so that no commit finds room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
