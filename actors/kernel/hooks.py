"""Typed events in four modes. Listeners are Effects: they vanish with their plugin.

They are called in the order in which they were added, and only while their plugin is ACTIVE: one
that loads, or is on its way out, neither sees nor changes anything.
"""

from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import trio
from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Generator

V = TypeVar("V")
R = TypeVar("R")
L = TypeVar("L")

Next: TypeAlias = Callable[[V], Awaitable[R]]


@frozen
class Hook(Generic[L]):
    """A named event whose listeners are of type ``L``. Made as one of the four modes."""

    name: str


class EmitHook(Hook[Callable[[V], None]], Generic[V]):
    """Tells everyone at once; nobody answers."""


class ParallelHook(Hook[Callable[[V], Awaitable[None]]], Generic[V]):
    """Runs all listeners side by side; the caller waits for them."""


class SerialHook(Hook[Callable[[V], Awaitable[R | None]]], Generic[V, R]):
    """Asks one listener after the other until one answers."""


class WaterfallHook(Hook[Callable[[V, Next[V, R]], Awaitable[R]]], Generic[V, R]):
    """Each listener may change what goes in and what comes out, around its call of ``next``."""


class Hooks:
    """The listeners of one runtime, and the only way to call them."""

    def __init__(self) -> None:
        self._listeners: dict[Hook[Any], list[tuple[Callable[[], bool], Any]]] = {}

    def add(self, hook: Hook[L], call: L, is_active: Callable[[], bool]) -> Callable[[], None]:
        """Add a listener, heard while ``is_active`` says so; return what takes it away again."""
        listeners = self._listeners.setdefault(hook, [])
        listeners.append(entry := (is_active, call))
        return lambda: listeners.remove(entry)

    def _active(self, hook: Hook[L]) -> list[L]:
        return [call for is_active, call in self._listeners.get(hook, ()) if is_active()]

    def emit(self, hook: EmitHook[V], value: V) -> None:
        """Tell every listener; raise an ExceptionGroup of their errors once all were told."""
        errors: list[Exception] = []
        for call in self._active(hook):
            with _keeping(errors):
                call(value)
        _raise_all(hook, errors)

    async def parallel(self, hook: ParallelHook[V], value: V) -> None:
        """Run all listeners; raise an ExceptionGroup of their errors once all have ended."""
        errors: list[Exception] = []

        async def run(call: Callable[[V], Awaitable[None]]) -> None:
            with _keeping(errors):
                await call(value)

        async with trio.open_nursery() as nursery:
            for call in self._active(hook):
                nursery.start_soon(run, call)
        _raise_all(hook, errors)

    async def serial(self, hook: SerialHook[V, R], value: V) -> R | None:
        """Return the first answer that is not None, None if there is none. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        for call in self._active(hook):
            answer = await call(value)
            if answer is not None:
                return answer
        return None

    async def waterfall(self, hook: WaterfallHook[V, R], value: V, last: Next[V, R]) -> R:
        """Return what the first listener makes of ``value``, whose ``next`` is the second.

        The last one's is ``last``. A listener that does not call its ``next`` has decided alone.
        Always a checkpoint.
        """
        await trio.lowlevel.checkpoint()
        call_next = last
        for call in reversed(self._active(hook)):
            call_next = partial(_with_next, call, call_next)
        return await call_next(value)


async def _with_next(
    call: Callable[[V, Next[V, R]], Awaitable[R]], following: Next[V, R], value: V
) -> R:
    return await call(value, following)


@contextmanager
def _keeping(errors: list[Exception]) -> "Generator[None, None, None]":
    try:
        yield
    except Exception as error:  # noqa: BLE001 # raised once all listeners were called
        errors.append(error)


def _raise_all(hook: Hook[Any], errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup(f"listeners of {hook.name}", errors)
