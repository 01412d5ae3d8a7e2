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

    The wait is shielded: the task is one that the block's own clean-up still needs, and it must
    end by itself once ``stop`` was called. An exception of the block comes out as it is, one of
    the task in an ExceptionGroup, after the block was cancelled.
    """
    failure: BaseException | None = None
    ended = trio.Event()

    async def run() -> None:
        try:
            await task()
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 # raised again below, not wrapped in a group
            failure = error
        finally:
            # Waiting here rather than in the nursery's exit, which would turn a cancellation
            # from outside into a group and lose the block's own exception.
            stop()
            with trio.CancelScope(shield=True):
                await ended.wait()
    if failure is not None:
        raise failure
