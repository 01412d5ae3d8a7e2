"""How plugins and their runtime end: with which error, after what, and what is told of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from kernel_support import Behaviour, Told, key, only_failure, plugin, states
from trio.testing import wait_all_tasks_blocked

from actors.errors import ContextClosed, Unmounted
from actors.kernel.fibers import Fiber, Plugin
from actors.kernel.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from actors.kernel.context import Context
    from actors.kernel.runtime import Runtime


# --- essential plugins ----------------------------------------------------------------------------


async def wait_for_it(fiber: Fiber, _other: Fiber) -> None:
    await fiber.wait_active()


async def wait_for_another(_fiber: Fiber, other: Fiber) -> None:
    await other.wait_active()


async def unmount_another(_fiber: Fiber, other: Fiber) -> None:
    await trio.lowlevel.checkpoint()
    await other.unmount()
    await trio.sleep_forever()


async def mount_more(fiber: Fiber, _other: Fiber) -> None:
    await fiber.runtime.until(lambda: fiber.state in {"FAILED", "DISPOSED"})
    fiber.runtime.mount(plugin("more"), Behaviour([]))
    await trio.sleep_forever()


async def wait_in_a_nursery(fiber: Fiber, other: Fiber) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fiber.wait_active)
        nursery.start_soon(other.wait_active)


@pytest.mark.parametrize(
    "block", [wait_in_a_nursery, wait_for_it, wait_for_another, unmount_another, mount_more]
)
async def test_an_essential_failure_comes_out_alone(
    block: Callable[[Fiber, Fiber], Awaitable[None]],
) -> None:
    """Whatever the block does meanwhile, what it meets of the end does not hide the reason."""
    with pytest.raises(Told, match="a in setup"):  # noqa: PT012 # all of it ends so
        async with open_runtime() as runtime:
            behaviour = Behaviour([], fails_in_setup=True)
            fiber = runtime.mount(plugin("a"), behaviour, essential=True)
            other = runtime.mount(plugin("b", ("never",)), Behaviour([]))
            await block(fiber, other)


async def test_an_error_of_the_block_itself_comes_along() -> None:
    """Only what tells the block of the end is left out: an error of its own is in the group."""
    behaviour = Behaviour([], effects=("x",), fails_on_leaving=("x",))
    with pytest.raises(BaseExceptionGroup) as raised:  # noqa: PT012 # the end raises
        async with open_runtime() as runtime:
            await runtime.mount(plugin("a"), behaviour, essential=True).wait_active()
            raise KeyError("block")
    assert [type(only_failure(error)) for error in raised.value.exceptions] == [Told, KeyError]


async def test_several_essential_failures_come_together() -> None:
    """The group holds each of them."""
    behaviours = [Behaviour([], effects=("x",), fails_on_leaving=("x",)) for _ in range(2)]
    with pytest.raises(BaseExceptionGroup, match="essential plugins") as raised:  # noqa: PT012
        async with open_runtime() as runtime:
            for number, behaviour in enumerate(behaviours):
                runtime.mount(plugin(f"p{number}"), behaviour, essential=True)
            await runtime.wait_settled()
            behaviours[0].crash.set()
            await trio.sleep_forever()
    assert len(raised.value.exceptions) == 2


async def test_an_essential_failure_replaces_a_cancellation() -> None:
    """As any clean-up that raises does: the error comes out, not in a group with a cancellation."""
    behaviour = Behaviour([], effects=("x",), fails_on_leaving=("x",))
    with pytest.raises(BaseExceptionGroup, match="plugin a"), trio.CancelScope() as scope:  # noqa: PT012
        async with open_runtime() as runtime:
            await runtime.mount(plugin("a"), behaviour, essential=True).wait_active()
            scope.cancel()
            await trio.sleep_forever()


async def test_an_essential_child_ends_everything() -> None:
    """Also below a plugin that is not essential itself."""

    async def set_up(context: Context, _config: None) -> None:
        context.mount(plugin("child"), Behaviour([], fails_in_setup=True), essential=True)

    with pytest.raises(Told, match="child in setup"):  # noqa: PT012 # all of it ends so
        async with open_runtime() as runtime:
            runtime.mount(Plugin("parent", set_up), None)
            await trio.sleep_forever()


async def test_a_failure_that_is_not_essential_ends_nothing() -> None:
    """The block goes on and ends well; what failed is in the picture."""
    async with open_runtime() as runtime:
        behaviour = Behaviour([])
        runtime.mount(plugin("a"), behaviour)
        await runtime.wait_settled()
        behaviour.crash.set()
        await wait_all_tasks_blocked()
        assert states(runtime) == {"a": "FAILED"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_ends_the_runtime(error: type[BaseException]) -> None:
    """An interrupt that hits a task of any plugin is not kept as that plugin's failure alone."""

    async def set_up(context: Context, _config: None) -> None:
        async def work() -> None:
            raise error

        context.start_soon(work)

    with pytest.raises(error):  # noqa: PT012 # all of it ends so
        async with open_runtime() as runtime:
            runtime.mount(Plugin("a", set_up), None)
            await trio.sleep_forever()


# --- leaving --------------------------------------------------------------------------------------


async def test_nothing_is_mounted_in_a_runtime_that_ends() -> None:
    """Neither while it ends nor afterwards; it knows of no fiber that never ran."""
    async with open_runtime() as runtime:
        pass
    with pytest.raises(ContextClosed):
        runtime.mount(plugin("a"), Behaviour([]))
    assert states(runtime) == {}


async def test_what_goes_wrong_at_the_end_is_told_to_the_observer() -> None:
    """A plugin that cannot be undone is seen FAILED once, also when everything is unmounted."""
    failures: list[tuple[str, str]] = []

    def observe(fiber: Fiber) -> None:
        if fiber.state == "FAILED":
            failures.append((fiber.plugin.name, str(only_failure(fiber.failure))))

    async with open_runtime(observe) as runtime:
        behaviour = Behaviour([], effects=("x",), fails_on_leaving=("x",))
        fiber = runtime.mount(plugin("a"), behaviour)
        runtime.mount(plugin("b"), Behaviour([], fails_in_setup=True))
        await runtime.wait_settled()
    assert failures == [("b", "b in setup"), ("a", "a.x on leaving")]
    assert fiber.state == "DISPOSED"


async def test_tasks_end_before_dependents_unload() -> None:
    """A task that takes its time to end keeps all else standing: dependents, then effects."""
    trace: list[str] = []
    go = trio.Event()

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        async def work() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await go.wait()
                trace.append("task")

        await plugin("a").setup(context, behaviour)
        context.start_soon(work)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), Behaviour(trace, ("s",), effects=("x",)))
        runtime.mount(plugin("b", ("s",)), Behaviour(trace, effects=("x",)))
        await runtime.wait_settled()
        trace.clear()
        fiber.ask_to_unmount()
        await wait_all_tasks_blocked()
        assert states(runtime) == {"a": "UNLOADING", "b": "ACTIVE"}
        assert runtime.inspect().fibers[0].tasks == (work_name(set_up),)
        go.set()
        await runtime.until(lambda: fiber.state == "DISPOSED")
        assert trace == ["task", "-b.x", "-a.x"]


def work_name(set_up: Callable[..., object]) -> str:
    """Return what a task that is called ``work`` within a setup is known as."""
    return f"{set_up.__qualname__}.<locals>.work"


async def test_errors_of_a_life_and_of_its_undoing_come_together() -> None:
    """The crash, what another task raised when it was cancelled, and what an effect raised."""

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        async def stubborn() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise Told("cancelled")

        await plugin("a").setup(context, behaviour)
        context.start_soon(stubborn)

    async with open_runtime() as runtime:
        behaviour = Behaviour([], effects=("x",), fails_on_leaving=("x",))
        fiber = runtime.mount(Plugin("a", set_up), behaviour)
        await fiber.wait_active()
        behaviour.crash.set()
        await runtime.until(lambda: fiber.state == "FAILED")
        failures = cast("ExceptionGroup[Exception]", fiber.failure).exceptions
        told = sorted(str(error) for error in failures)
        assert told == ["a in the background", "a.x on leaving", "cancelled"]


async def test_a_cancelled_group_leaves_only_what_is_no_cancellation() -> None:
    """Of a task's nursery that is cancelled and fails at once, the failure counts."""

    async def set_up(context: Context, _config: None) -> None:
        async def fail() -> None:
            raise Told("within")

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(fail)

        context.start_soon(work)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await runtime.until(lambda: fiber.state == "FAILED")
        assert str(only_failure(fiber.failure)) == "within"


async def test_a_shielded_task_of_an_effect_serves_dependents_to_the_end() -> None:
    """What dependents need while they unload is an Effect whose task ends when it is left."""
    answers: list[str] = []

    async with open_runtime() as runtime:

        @asynccontextmanager
        async def serving(stop: trio.Event) -> AsyncGenerator[Callable[[], Awaitable[None]], None]:
            send, receive = trio.open_memory_channel[trio.Event](0)

            async def serve() -> None:
                with trio.CancelScope(shield=True):
                    async for reply in receive:
                        reply.set()
                stop.set()

            async def ask() -> None:
                reply = trio.Event()
                await send.send(reply)
                await reply.wait()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                yield ask
                send.close()

        async def set_up(context: Context, stop: trio.Event) -> None:
            context.provide(ASK, await context.enter(serving(stop), "serving"))

        @asynccontextmanager
        async def asking(context: Context) -> AsyncGenerator[None, None]:
            yield
            await context.require(ASK)()
            answers.append("answered")

        async def set_up_user(context: Context, _config: None) -> None:
            await context.enter(asking(context), "asking")

        stop = trio.Event()
        provider = runtime.mount(Plugin("a", set_up), stop)
        runtime.mount(Plugin("b", set_up_user, (ASK,)), None)
        await runtime.wait_settled()
        await provider.unmount()
        assert (answers, stop.is_set()) == (["answered"], True)


ASK: Any = key("ask")


async def test_undoing_is_shielded_however_often_it_is_cancelled() -> None:
    """A cancellation from outside, and one of the Effect around it, let clean-ups take their time.

    The Effect that is cancelled from within is the outer one: the inner is left as always.
    """
    trace: list[str] = []
    scopes: list[trio.CancelScope] = []
    go = trio.Event()

    @asynccontextmanager
    async def scope() -> AsyncGenerator[trio.CancelScope, None]:
        with trio.CancelScope() as it:
            yield it

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None, None]:
        yield
        await go.wait()
        trace.append("undone")

    async def set_up(context: Context, _config: None) -> None:
        scopes.append(await context.enter(scope(), "scope"))
        await context.enter(slow(), "slow")

    async def let_go() -> None:
        await wait_all_tasks_blocked()
        trace.append("waited")
        go.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as outside:
            async with open_runtime() as runtime:
                await runtime.mount(Plugin("a", set_up), None).wait_active()
                nursery.start_soon(let_go)
                scopes[0].cancel()
                outside.cancel()
                await trio.sleep_forever()
    assert trace == ["waited", "undone"]


async def test_an_effect_that_cannot_be_entered_leaves_nothing() -> None:
    """Its error fails the plugin; what was entered before it is undone, it itself is not."""
    trace: list[str] = []

    @asynccontextmanager
    async def broken() -> AsyncGenerator[None, None]:
        trace.append("broken")
        raise Told("on entering")
        yield

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        await plugin("a").setup(context, behaviour)
        await context.enter(broken(), "broken")

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), Behaviour(trace, effects=("x",)))
        with pytest.raises(Told, match="on entering"):
            await fiber.wait_active()
        assert trace == ["+a.x", "broken", "-a.x"]


async def test_a_setup_that_survives_its_cancellation_is_unloaded_all_the_same() -> None:
    """Asked to leave while it loads, a plugin never becomes ACTIVE."""
    moves: list[str] = []
    hold = trio.Event()

    async def set_up(_context: Context, _config: None) -> None:
        with trio.CancelScope(shield=True):
            await hold.wait()

    async with open_runtime(lambda fiber: moves.append(fiber.state)) as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await wait_all_tasks_blocked()
        fiber.ask_to_unmount()
        hold.set()
        with pytest.raises(Unmounted):
            await fiber.wait_active()
    assert moves == ["LOADING", "UNLOADING", "DISPOSED"]


@pytest.mark.parametrize("how", ["by exception", "by cancellation"])
async def test_no_task_outlives_a_plugin(how: str) -> None:
    """Once a plugin is gone so are its tasks; once the runtime is, all are."""

    def tasks_below(task: trio.lowlevel.Task) -> list[str]:
        return [
            name
            for nursery in task.child_nurseries
            for child in nursery.child_tasks
            for name in (child.name, *tasks_below(child))
        ]

    async def set_up(context: Context, _config: None) -> None:
        context.start_soon(trio.sleep_forever)
        context.mount(plugin("child"), Behaviour([]))

    async def go_through(runtime: Runtime) -> None:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await runtime.wait_settled()
        assert (
            len(tasks_below(runtime.root.nursery.parent_task)) == 4
        )  # two plugins, a task of each
        await fiber.unmount()
        assert tasks_below(runtime.root.nursery.parent_task) == []
        runtime.mount(Plugin("a", set_up), None)
        await runtime.wait_settled()

    before = tasks_below(trio.lowlevel.current_task())
    scope = trio.CancelScope()
    try:
        with scope:
            async with open_runtime() as runtime:
                await go_through(runtime)
                scope.cancel()
                await (trio.sleep_forever if how == "by cancellation" else partial(fail))()
    except Told:
        assert how == "by exception"
    assert tasks_below(trio.lowlevel.current_task()) == before


async def fail() -> None:
    raise Told("the block")
