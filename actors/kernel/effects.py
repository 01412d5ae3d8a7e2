"""What a plugin does that must be undone: entered one by one, left in reverse, all of them.

An Effect may hold a nursery or a cancel scope open. Those nest by task, so it is entered and left
in one task, and the scope that shields and bounds its exit is opened *before* it is entered:
opened around the exit, it would lie inside of what that closes.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TypeVar

import trio

from actors.errors import EffectTimeout

T = TypeVar("T")
Effect = AbstractAsyncContextManager

EFFECT_DEADLINE_S = 5.0
"""How long leaving one Effect may take, unless it was entered with another deadline."""


class EffectStack:
    """The Effects of one load of a plugin."""

    def __init__(self) -> None:
        self._undo: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    @property
    def labels(self) -> tuple[str, ...]:
        """What stands, oldest first."""
        return tuple(label for label, _ in self._undo)

    async def enter(self, effect: Effect[T], label: str, deadline_s: float) -> T:
        """Enter an Effect and return what it yields. If that raises, there is nothing to undo."""
        scope = trio.CancelScope()
        with ExitStack() as entering:
            entering.enter_context(scope)
            value = await effect.__aenter__()
            standing = entering.pop_all()  # the scope stays open until the Effect is left

        async def leave() -> None:
            scope.shield, scope.deadline = True, trio.current_time() + deadline_s
            with standing:
                # As for a block that ended well: what went wrong elsewhere is not this Effect's,
                # and a cancellation of its own it knows by itself.
                await effect.__aexit__(None, None, None)
            if scope.cancelled_caught:
                raise EffectTimeout(label, deadline_s)

        self._undo.append((label, leave))
        return value

    def add(self, label: str, undo: Callable[[], object]) -> None:
        """Remember how to undo what was done without waiting."""

        async def undo_at_once() -> None:
            undo()

        self._undo.append((label, undo_at_once))

    async def leave(self) -> list[BaseException]:
        """Undo all in reverse, one by one, shielded, and return all that this raised."""
        errors: list[BaseException] = []
        while self._undo:
            try:
                await self._undo.pop()[1]()
            except BaseException as error:  # noqa: BLE001 # the fiber has it
                errors.append(error)
        return errors
