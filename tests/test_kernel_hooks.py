"""Hooks of the kernel: who hears what while plugins come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from kernel_support import Told

from actors.kernel.fibers import Fiber, Plugin
from actors.kernel.hooks import EmitHook, ParallelHook, SerialHook, WaterfallHook
from actors.kernel.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.context import Context
    from actors.kernel.runtime import Runtime

EMIT = EmitHook[list[str]]("hook")
PARALLEL = ParallelHook[list[str]]("hook")
SERIAL = SerialHook[list[str], str]("hook")
WATERFALL = WaterfallHook[list[str], str]("hook")


async def listen(context: Context, config: tuple[Any, Callable[..., Any]]) -> None:
    """Set up one listener of one hook."""
    context.listen(*config)


def two(
    runtime: Runtime, hook: Any, first: Callable[..., Any], second: Callable[..., Any]
) -> Fiber:
    """Mount two plugins with a listener each, and return the second."""
    runtime.mount(Plugin("first", listen), (hook, first))
    return runtime.mount(Plugin("second", listen), (hook, second))


async def last(told: list[str]) -> str:
    """Stand at the end of a waterfall."""
    return f"last after {told}"


def hear(told: list[str]) -> None:
    """Listen, and tell of it."""
    told.append("heard")


async def test_hooks_of_one_name_and_another_mode_are_others() -> None:
    """A hook is known by its name and mode, wherever it was made."""
    async with open_runtime() as runtime:
        told: list[str] = []
        runtime.mount(Plugin("a", listen), (EMIT, hear))
        await runtime.wait_settled()
        assert await runtime.hooks.serial(SERIAL, told) is None
        await runtime.hooks.parallel(PARALLEL, told)
        assert told == []
        runtime.hooks.emit(EmitHook("hook"), told)
        assert told == ["heard"]


async def test_emit_does_not_reach_who_left_meanwhile() -> None:
    """A listener that a listener before it has asked to leave hears nothing."""
    fibers: list[Fiber] = []

    def first(told: list[str]) -> None:
        told.append("first")
        fibers[0].ask_to_unmount()

    async with open_runtime() as runtime:
        fibers.append(two(runtime, EMIT, first, hear))
        await runtime.wait_settled()
        told: list[str] = []
        runtime.hooks.emit(EMIT, told)
        assert told == ["first"]


async def test_serial_does_not_ask_who_left_meanwhile() -> None:
    """A listener is asked only if its plugin is ACTIVE when its turn comes."""
    fibers: list[Fiber] = []

    async def first(told: list[str]) -> None:
        told.append("first")
        await fibers[0].unmount()

    async def second(_told: list[str]) -> str:
        return "second"

    async with open_runtime() as runtime:
        fibers.append(two(runtime, SERIAL, first, second))
        await runtime.wait_settled()
        told: list[str] = []
        assert await runtime.hooks.serial(SERIAL, told) is None
        assert told == ["first"]


async def test_a_waterfall_passes_by_who_left_meanwhile() -> None:
    """The next of a listener is the next whose plugin is ACTIVE when it is called."""
    fibers: list[Fiber] = []

    async def first(told: list[str], following: Callable[[list[str]], Awaitable[str]]) -> str:
        await fibers[0].unmount()
        return await following([*told, "first"])

    async def second(_told: list[str], _following: object) -> str:
        return "second"

    async with open_runtime() as runtime:
        fibers.append(two(runtime, WATERFALL, first, second))
        await runtime.wait_settled()
        assert await runtime.hooks.waterfall(WATERFALL, [], last) == "last after ['first']"


async def test_a_waterfall_listener_may_go_on_more_than_once() -> None:
    """Each call of ``next`` runs all that follows anew."""

    async def twice(told: list[str], following: Callable[[list[str]], Awaitable[str]]) -> str:
        return f"{await following([*told, 'a'])}, {await following([*told, 'b'])}"

    async def add(told: list[str], following: Callable[[list[str]], Awaitable[str]]) -> str:
        return await following([*told, "+"])

    async with open_runtime() as runtime:
        two(runtime, WATERFALL, twice, add)
        await runtime.wait_settled()
        answer = await runtime.hooks.waterfall(WATERFALL, [], last)
        assert answer == "last after ['a', '+'], last after ['b', '+']"


async def test_serial_and_waterfall_raise_what_a_listener_raises() -> None:
    """As it is, and whoever comes after is not called."""
    called: list[str] = []

    async def fail(*_: object) -> str:
        raise Told("x")

    async def late(*_: object) -> str:
        called.append("late")
        return "late"

    async with open_runtime() as runtime:
        two(runtime, SERIAL, fail, late)
        two(runtime, WATERFALL, fail, late)
        await runtime.wait_settled()
        with pytest.raises(Told):
            await runtime.hooks.serial(SERIAL, [])
        with pytest.raises(Told):
            await runtime.hooks.waterfall(WATERFALL, [], last)
        assert called == []


async def test_parallel_can_be_cancelled() -> None:
    """A cancellation ends all listeners, and is no error of theirs."""
    ended: list[str] = []

    async def wait(_told: list[str]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("one")

    async with open_runtime() as runtime:
        two(runtime, PARALLEL, wait, wait)
        await runtime.wait_settled()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.hooks.parallel, PARALLEL, list[str]())
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert ended == ["one", "one"]


async def test_without_listeners_every_mode_is_a_checkpoint() -> None:
    """The asynchronous modes can be cancelled also where nobody listens."""
    async with open_runtime() as runtime:
        hooks = runtime.hooks
        hooks.emit(EMIT, [])
        with trio.testing.assert_checkpoints():
            await hooks.parallel(PARALLEL, [])
        with trio.testing.assert_checkpoints():
            await hooks.serial(SERIAL, [])
        with trio.testing.assert_checkpoints():
            await hooks.waterfall(WATERFALL, [], last)
