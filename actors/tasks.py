"""A task that runs beside a block of code and ends after it, in order."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


@asynccontextmanager
async def running_beside(
    task: Callable[[], Awaitable[None]], stop: Callable[[], None]
) -> AsyncGenerator[None, None]:
    """Run ``task`` while the block runs; then call ``stop`` and wait until the task has ended.

    Task and wait are shielded: the task is one that the block's own clean-up still needs, and it
    must end by itself once ``stop`` was called. A task that raises cancels the block. The nursery
    is nobody's business outside: an exception that comes alone, the block's or the task's, is
    not wrapped in a group; only if both raise do they come out in one.
    """
    failure: BaseException | None = None
    ended = trio.Event()

    async def run() -> None:
        try:
            with trio.CancelScope(shield=True):
                await task()
        finally:
            ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                yield
            except BaseException as error:  # noqa: BLE001 # raised again below
                failure = error
            stop()
            with trio.CancelScope(shield=True):
                await ended.wait()
            if failure is not None and nursery.cancel_scope.cancel_called:
                # The task has raised and thereby cancelled the block. What comes of that must
                # end in here, where the cancellation is known as the nursery's own.
                raise failure
    except BaseExceptionGroup as group:
        failure, *others = group.exceptions
        if others:
            raise
    if failure is not None:
        raise failure
