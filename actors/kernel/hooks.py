"""Typed events in four modes. Listeners are Effects: they vanish with their plugin.

They are called in the order in which they were added, each only if its plugin is ACTIVE when its
turn comes: one that loads, or is on its way out, neither sees nor changes anything.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import trio
from attrs import frozen

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

    def _active(self, hook: Hook[L]) -> Iterator[L]:
        for is_active, call in tuple(self._listeners.get(hook, ())):
            if is_active():
                yield call

    def emit(self, hook: EmitHook[V], value: V) -> None:
        """Tell every listener; raise an ExceptionGroup of their errors once all were told."""
        errors: list[Exception] = []
        for call in self._active(hook):
            try:
                call(value)
            except Exception as error:  # noqa: BLE001 # raised below
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"listeners of {hook.name}", errors)

    async def parallel(self, hook: ParallelHook[V], value: V) -> None:
        """Run all listeners; raise an ExceptionGroup of their errors once all have ended."""
        errors: list[Exception] = []

        async def run(call: Callable[[V], Awaitable[None]]) -> None:
            try:
                await call(value)
            except Exception as error:  # noqa: BLE001 # raised below
                errors.append(error)

        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            for call in self._active(hook):
                nursery.start_soon(run, call)
        if errors:
            raise ExceptionGroup(f"listeners of {hook.name}", errors)

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
        listeners = tuple(self._listeners.get(hook, ()))

        async def go_on(begin: int, value: V) -> R:
            for at, (is_active, call) in enumerate(listeners[begin:], begin + 1):
                if is_active():
                    return await call(value, partial(go_on, at))
            return await last(value)

        await trio.lowlevel.checkpoint()
        return await go_on(0, value)
