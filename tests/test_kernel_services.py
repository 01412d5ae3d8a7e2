"""Services of the kernel: who sees them when, who may provide them, and who is tried again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from kernel_support import Behaviour, Told, key, plugin, states
from trio.testing import wait_all_tasks_blocked

from actors.errors import ContextClosed, ServiceConflict
from actors.kernel.fibers import Plugin
from actors.kernel.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from actors.kernel.context import Context


async def test_a_service_can_be_provided_late() -> None:
    """A plugin that is ACTIVE may provide more, and whoever waits for it loads."""
    go = trio.Event()

    async def set_up(context: Context, _config: None) -> None:
        async def provide_late() -> None:
            await go.wait()
            context.provide(key("s"), "s, late")
            await trio.sleep_forever()  # nothing else happens that would have anyone look

        context.start_soon(provide_late)

    async with open_runtime() as runtime:
        runtime.mount(Plugin("provider", set_up), None)
        user = runtime.mount(plugin("user", ("s",)), Behaviour([]))
        await runtime.wait_settled()
        assert user.state == "PENDING"
        go.set()
        with trio.fail_after(5):
            await user.wait_active()


@pytest.mark.parametrize("whose", ["its own", "its child's"])
async def test_a_conflict_that_ends_with_the_plugin_itself_is_no_cause_to_try_again(
    whose: str,
) -> None:
    """What a plugin takes along as it fails cannot mend it: it loads once, not for ever."""
    loads: list[str] = []

    async def set_up(context: Context, _config: None) -> None:
        loads.append("load")
        if whose == "its own":
            context.provide(key("s"), "s")
        else:
            await context.mount(plugin("child"), Behaviour([], ("s",))).wait_active()
        context.provide(key("s"), "s")

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        await runtime.wait_settled()
        assert (states(runtime), loads) == ({"a": "FAILED"}, ["load"])
        assert isinstance(fiber.failure, ServiceConflict)


async def test_a_conflict_with_a_dependent_is_no_cause_to_try_again() -> None:
    """Nor can what depends on the plugin, and so goes with it."""
    loads: list[str] = []
    go = trio.Event()

    async def set_up(context: Context, _config: None) -> None:
        async def provide_late() -> None:
            await go.wait()
            context.provide(key("t"), "t")

        loads.append("load")
        context.provide(key("s"), "s")
        context.start_soon(provide_late)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        runtime.mount(plugin("b", ("s",)), Behaviour([], ("t",)))
        await runtime.wait_settled()
        go.set()
        await runtime.until(lambda: fiber.state == "FAILED")
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        assert (states(runtime), loads) == ({"a": "FAILED", "b": "PENDING"}, ["load"])


async def test_after_a_conflict_the_other_is_waited_for_until_it_is_wholly_undone() -> None:
    """The second provider is tried again once the first has let go of all it held."""
    trace: list[str] = []
    go = trio.Event()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None, None]:
        yield
        await go.wait()
        trace.append("first is undone")

    async def set_up(context: Context, _config: None) -> None:
        await context.enter(slow(), "slow")
        context.provide(key("s"), "s")

    async def set_up_second(context: Context, _config: None) -> None:
        trace.append("second loads")
        context.provide(key("s"), "s")

    async with open_runtime() as runtime:
        first = runtime.mount(Plugin("first", set_up), None)
        second = runtime.mount(Plugin("second", set_up_second), None)
        await runtime.wait_settled()
        assert second.state == "FAILED"
        first.ask_to_unmount()
        await wait_all_tasks_blocked()
        assert runtime.inspect().services == ()
        runtime.mount(plugin("other"), Behaviour([]))  # everyone looks again
        await wait_all_tasks_blocked()
        go.set()
        await runtime.wait_settled()
        assert second.state == "ACTIVE"
    assert trace == ["second loads", "first is undone", "second loads"]


async def test_one_provider_a_realm_also_within_one() -> None:
    """In a realm of its own a key is free once, and what is isolated twice is another realm."""
    realms: list[str] = []

    async def set_up(context: Context, _config: None) -> None:
        context.provide(key("s"), "outer")
        inner = context.isolate(key("s"), key("t"))
        inner.provide(key("s"), "inner")
        context.isolate(key("s")).provide(key("s"), "another")
        with pytest.raises(ServiceConflict, match="a: s is provided by a"):
            inner.provide(key("s"), "second")
        realms.extend(service.realm for service in context.inspect().services)

    async with open_runtime() as runtime:
        await runtime.mount(Plugin("a", set_up), None).wait_active()
        assert realms == ["root", "a:s+t", "a:s"]


async def test_what_was_required_stands_until_the_plugin_is_unloaded() -> None:
    """Afterwards ``require`` raises, whatever is provided meanwhile."""
    contexts: list[Context] = []

    async def set_up(context: Context, _config: None) -> None:
        contexts.append(context)

    async with open_runtime() as runtime:
        provider = runtime.mount(plugin("a"), Behaviour([], ("s",)))
        user = runtime.mount(Plugin("b", set_up, (key("s"),)), None)
        await user.wait_active()
        assert contexts[0].require(key("s")) == "s of a"
        await provider.unmount()
        assert user.state == "PENDING"
        with pytest.raises(ContextClosed, match="b is PENDING"):
            contexts[0].require(key("s"))


async def test_dependents_of_a_child_go_before_it() -> None:
    """A plugin waits for its children, and these for those that use what they provide."""
    trace: list[str] = []

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        await plugin("parent").setup(context, behaviour)
        context.mount(plugin("child"), Behaviour(trace, ("s",), effects=("x",)))

    async with open_runtime() as runtime:
        parent = runtime.mount(Plugin("parent", set_up), Behaviour(trace, effects=("x",)))
        user = runtime.mount(plugin("user", ("s",)), Behaviour(trace, effects=("x",)))
        await runtime.wait_settled()
        trace.clear()
        await parent.unmount()
        assert trace == ["-user.x", "-child.x", "-parent.x"]
        assert user.state == "PENDING"


async def test_a_dependent_that_cannot_be_undone_holds_up_nobody() -> None:
    """Its provider goes on leaving; the dependent waits again, its failure told to the observer."""
    trace: list[str] = []
    failures: list[str] = []

    def observe(fiber: object) -> None:
        failure = getattr(fiber, "failure", None)
        if getattr(fiber, "state", "") == "FAILED":
            failures.append(str(failure))

    async with open_runtime(observe) as runtime:
        provider = runtime.mount(plugin("a"), Behaviour(trace, ("s",), effects=("x",)))
        behaviour = Behaviour(trace, effects=("x", "y"), fails_on_leaving=("y",))
        user = runtime.mount(plugin("b", ("s",)), behaviour)
        await runtime.wait_settled()
        await provider.unmount()
        assert trace[3:] == ["-b.y", "-b.x", "-a.x"]
        await runtime.wait_settled()
        assert user.state == "PENDING"
    assert failures == ["plugin b (1 sub-exception)"]


async def test_what_runs_in_the_background_may_mount_and_unmount() -> None:
    """A task of a plugin mounts below it, and unmounts what it mounted and what it depends on."""
    trace: list[str] = []
    go = trio.Event()

    async with open_runtime() as runtime:
        provider = runtime.mount(plugin("a"), Behaviour(trace, ("s",), effects=("x",)))

        async def set_up(context: Context, _config: None) -> None:
            async def work() -> None:
                child = context.mount(plugin("child", ("s",)), Behaviour(trace, effects=("x",)))
                await child.wait_active()
                await child.unmount()
                trace.append("unmounted")
                await go.wait()
                await provider.unmount()

            context.start_soon(work)

        user = runtime.mount(Plugin("b", set_up, (key("s"),)), None)
        await wait_all_tasks_blocked()
        assert trace == ["+a.x", "+child.x", "-child.x", "unmounted"]
        go.set()
        await runtime.until(lambda: provider.state == "DISPOSED")
        assert (user.state, user.failure) == ("PENDING", None)


async def test_children_come_back_with_their_parent_as_others() -> None:
    """A parent that unloads loses its children for good, and mounts new ones when it loads."""

    async def set_up(context: Context, _config: None) -> None:
        context.mount(plugin("child"), Behaviour([], fails_in_setup=True))
        context.mount(plugin("waiting", ("never",)), Behaviour([]))

    async with open_runtime() as runtime:
        provider = runtime.mount(plugin("a"), Behaviour([], ("s",)))
        runtime.mount(Plugin("parent", set_up, (key("s"),)), None)
        await runtime.wait_settled()
        assert [fiber.fiber_id for fiber in runtime.inspect().fibers] == [1, 2, 3, 4]
        await provider.unmount()
        assert states(runtime) == {"parent": "PENDING"}
        runtime.mount(plugin("a"), Behaviour([], ("s",)))
        await runtime.wait_settled()
        views = runtime.inspect().fibers
        assert [(v.fiber_id, v.parent_id, v.state) for v in views] == [
            (2, None, "ACTIVE"),
            (5, None, "ACTIVE"),
            (6, 2, "FAILED"),
            (7, 2, "PENDING"),
        ]


async def test_settled_means_that_all_that_was_asked_for_is_done() -> None:
    """Right after a plugin was asked to leave, nothing is settled, and it is ACTIVE no more."""
    async with open_runtime() as runtime:
        for _ in range(20):  # who of several tasks runs first is chance
            fiber = runtime.mount(plugin("a"), Behaviour([], ("s",)))
            user = runtime.mount(plugin("b", ("s",)), Behaviour([]))
            await user.wait_active()
            fiber.ask_to_unmount()
            assert fiber.state == "UNLOADING"
            user.ask_to_unmount()
            await runtime.wait_settled()
            assert states(runtime) == {}


async def test_unmounting_goes_on_without_whoever_waits_for_it() -> None:
    """Cancelled, only the wait ends; asking again is no fault, also of one that is gone."""
    go = trio.Event()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None, None]:
        yield
        await go.wait()

    async def set_up(context: Context, _config: None) -> None:
        await context.enter(slow(), "slow")

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await fiber.wait_active()
        with trio.CancelScope() as scope:
            scope.cancel()
            await fiber.unmount()
        assert scope.cancelled_caught
        go.set()
        await fiber.unmount()
        await fiber.unmount()
        assert fiber.state == "DISPOSED"


async def test_a_failed_plugin_can_be_unmounted() -> None:
    """It has nothing left to undo, and its old failure is not raised again."""
    async with open_runtime() as runtime:
        fiber = runtime.mount(plugin("a"), Behaviour([], fails_in_setup=True))
        with pytest.raises(Told):
            await fiber.wait_active()
        await fiber.unmount()
        assert states(runtime) == {}
