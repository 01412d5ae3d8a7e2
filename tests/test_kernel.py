"""The lifecycle kernel: when plugins load and unload, in which order, and what failing costs."""

from __future__ import annotations

import ast
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from kernel_support import Behaviour, Told, key, only_failure, plugin, states
from trio.testing import wait_all_tasks_blocked

import actors.kernel
from actors.errors import (
    ContextClosed,
    EffectEnded,
    EffectTimeout,
    ForeignTask,
    IllegalMove,
    ServiceConflict,
    UndeclaredService,
    Unmounted,
)
from actors.kernel.fibers import LEGAL_MOVES, Plugin
from actors.kernel.hooks import EmitHook, ParallelHook, SerialHook, WaterfallHook
from actors.kernel.runtime import open_runtime
from actors.tasks import running_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from actors.kernel.context import Context

CHAIN = {"a": (), "b": ("sa",), "c": ("sb",)}
"""Plugins that require one another in a row: a provides sa, and so on."""


async def nothing(_context: Context, _config: object) -> None:
    """Set up nothing."""


# --- requirements ---------------------------------------------------------------------------------


async def test_a_plugin_waits_for_what_it_requires() -> None:
    """Mounted in any order, plugins load in the order of what they require."""
    trace: list[str] = []
    async with open_runtime(lambda fiber: trace.append(f"{fiber.plugin.name} {fiber.state}")) as r:
        for name in ("c", "b", "a"):
            r.mount(plugin(name, CHAIN[name]), Behaviour(trace, provides=(f"s{name}",)))
            await r.wait_settled()
            if name != "a":
                assert states(r)[name] == "PENDING"
        assert set(states(r).values()) == {"ACTIVE"}
        loads = [entry for entry in trace if entry.endswith((" LOADING", " ACTIVE"))]
    assert loads == [f"{name} {state}" for name in "abc" for state in ("LOADING", "ACTIVE")]


async def test_plugins_load_in_the_order_of_mounting() -> None:
    """Of several that can load, the one mounted first does: chance decides nothing."""
    loads: list[int] = []

    async def set_up(_context: Context, number: int) -> None:
        loads.append(number)

    async with open_runtime() as runtime:
        for number in range(20):
            runtime.mount(Plugin(f"p{number}", set_up, (key("s"),)), number)
        runtime.mount(plugin("provider"), Behaviour([], provides=("s",)))
        await runtime.wait_settled()
    assert loads == list(range(20))


async def test_a_service_is_seen_once_its_provider_is_active() -> None:
    """A provider that still loads is no provider yet."""
    hold = trio.Event()

    async def provide(context: Context, _config: None) -> None:
        context.provide(key("s"), "s")
        await hold.wait()

    async with open_runtime() as runtime:
        runtime.mount(Plugin("provider", provide), None)
        runtime.mount(plugin("user", ("s",)), Behaviour([]))
        await wait_all_tasks_blocked()
        assert states(runtime) == {"provider": "LOADING", "user": "PENDING"}
        (service,) = runtime.inspect().services
        assert (service.key, service.realm, service.is_visible) == ("s", "root", False)
        hold.set()
        await runtime.wait_settled()
        assert states(runtime)["user"] == "ACTIVE"


async def test_only_what_is_declared_can_be_had() -> None:
    """``require`` of a key that the plugin does not declare raises, even where it is provided."""

    async def reach(context: Context, _config: None) -> None:
        context.require(key("s"))

    async with open_runtime() as runtime:
        runtime.mount(plugin("provider"), Behaviour([], provides=("s",)))
        await runtime.wait_settled()
        fiber = runtime.mount(Plugin("reacher", reach), None)
        with pytest.raises(UndeclaredService, match="reacher does not declare that it requires s"):
            await fiber.wait_active()


async def test_a_key_has_one_provider_in_a_realm() -> None:
    """The second of two providers fails; once the first has gone it is loaded again."""
    async with open_runtime() as runtime:
        first = runtime.mount(plugin("first"), Behaviour([], provides=("s",)))
        second = runtime.mount(plugin("second"), Behaviour([], provides=("s",)))
        await runtime.wait_settled()
        assert (first.state, second.state) == ("ACTIVE", "FAILED")
        assert isinstance(second.failure, ServiceConflict)
        await first.unmount()
        await runtime.wait_settled()
        assert second.state == "ACTIVE"
        assert second.failure is None


async def test_realms_keep_equal_keys_apart() -> None:
    """In an isolated context a key means another service, for what is mounted there alone."""
    seen: list[str] = []

    async def look(context: Context, _config: None) -> None:
        seen.append(context.require(key("s")))

    async def isolate(context: Context, _config: None) -> None:
        inner = context.isolate(key("s"))
        inner.provide(key("s"), "inner")
        inner.mount(Plugin("inner user", look, (key("s"),)), None)
        context.mount(Plugin("outer user", look, (key("s"),)), None)

    async with open_runtime() as runtime:
        runtime.mount(Plugin("isolator", isolate), None)
        await runtime.wait_settled()
        assert seen == ["inner"]
        assert states(runtime)["outer user"] == "PENDING"
        runtime.mount(plugin("outer"), Behaviour([], provides=("s",)))
        await runtime.wait_settled()
        assert seen == ["inner", "s of outer"]
        assert [s.realm for s in runtime.inspect().services] == ["isolator:s", "root"]


async def test_a_provider_takes_its_dependents_along_and_brings_them_back() -> None:
    """Dependents unload first, transitively; with a new provider they are loaded again."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        fibers = {
            name: runtime.mount(
                plugin(name, requires), Behaviour(trace, (f"s{name}",), effects=("x", "y"))
            )
            for name, requires in CHAIN.items()
        }
        await runtime.wait_settled()
        trace.clear()
        await fibers["a"].unmount()
        assert trace == ["-c.y", "-c.x", "-b.y", "-b.x", "-a.y", "-a.x"]
        assert states(runtime) == {"b": "PENDING", "c": "PENDING"}
        trace.clear()
        runtime.mount(plugin("a2"), Behaviour(trace, ("sa",)))
        await runtime.wait_settled()
        assert trace == ["+b.x", "+b.y", "+c.x", "+c.y"]
        assert set(states(runtime).values()) == {"ACTIVE"}


async def test_a_provider_that_goes_while_a_dependent_loads() -> None:
    """The dependent's setup is cut short, its effects are undone, and it waits again."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        provider = runtime.mount(plugin("a"), Behaviour(trace, ("sa",), effects=("x",)))
        user = runtime.mount(
            plugin("b", ("sa",)), Behaviour(trace, effects=("x",), hold=trio.Event())
        )
        await wait_all_tasks_blocked()
        assert user.state == "LOADING"
        await provider.unmount()
        assert trace == ["+a.x", "+b.x", "-b.x", "-a.x"]
        assert (user.state, user.failure) == ("PENDING", None)


# --- effects --------------------------------------------------------------------------------------


async def test_a_failed_setup_is_undone_in_reverse() -> None:
    """What was done before the failure is undone; the plugin is FAILED, and others go on."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        other = runtime.mount(plugin("other"), Behaviour(trace))
        behaviour = Behaviour(trace, effects=("x", "y"), fails_in_setup=True)
        fiber = runtime.mount(plugin("a"), behaviour)
        with pytest.raises(Told, match="a in setup"):
            await fiber.wait_active()
        assert trace == ["+a.x", "+a.y", "-a.y", "-a.x"]
        assert (fiber.state, other.state) == ("FAILED", "ACTIVE")
        assert fiber.effects.labels == ()
        behaviour.fails_in_setup = False
        fiber.retry()
        await fiber.wait_active()
        with pytest.raises(IllegalMove):
            fiber.retry()


async def test_a_failure_is_retried_when_what_it_rests_on_changes() -> None:
    """A plugin that failed with one provider has another try with the next."""
    async with open_runtime() as runtime:
        provider = runtime.mount(plugin("a"), Behaviour([], ("sa",)))
        behaviour = Behaviour([], fails_in_setup=True)
        user = runtime.mount(plugin("b", ("sa",)), behaviour)
        await runtime.wait_settled()
        assert user.state == "FAILED"
        behaviour.fails_in_setup = False
        runtime.mount(plugin("unrelated"), Behaviour([], ("other",)))
        await runtime.wait_settled()
        assert user.state == "FAILED"  # nothing that concerns it has changed
        await provider.unmount()
        await runtime.wait_settled()
        assert user.state == "PENDING"
        runtime.mount(plugin("a2"), Behaviour([], ("sa",)))
        await runtime.wait_settled()
        assert user.state == "ACTIVE"


async def test_every_effect_is_left_whatever_others_raise() -> None:
    """All errors of undoing come together in one group, and the plugin is gone."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        behaviour = Behaviour(trace, effects=("x", "y", "z"), fails_on_leaving=("x", "z"))
        fiber = runtime.mount(plugin("a"), behaviour)
        await fiber.wait_active()
        with pytest.raises(BaseExceptionGroup) as raised:
            await fiber.unmount()
    assert [str(error) for error in raised.value.exceptions] == [
        "a.z on leaving",
        "a.x on leaving",
    ]
    assert trace[3:] == ["-a.z", "-a.y", "-a.x"]
    assert fiber.state == "DISPOSED"


async def test_leaving_an_effect_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """An effect that takes too long is cancelled after its own deadline; the others are left."""
    left: list[str] = []

    @asynccontextmanager
    async def slow(name: str, takes_s: float) -> AsyncGenerator[None, None]:
        yield
        await trio.sleep(takes_s)
        left.append(name)

    async def set_up(context: Context, _config: None) -> None:
        await context.enter(slow("first", 4), "first")
        await context.enter(slow("second", 1000), "second", deadline_s=7)
        await context.enter(slow("third", 4), "third")

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await fiber.wait_active()
        began = trio.current_time()
        with pytest.raises(BaseExceptionGroup) as raised:
            await fiber.unmount()
        assert trio.current_time() - began == pytest.approx(4 + 7 + 4)
    assert autojump_clock.autojump_threshold == 0
    (timeout,) = raised.value.exceptions
    assert isinstance(timeout, EffectTimeout)
    assert (timeout.label, timeout.deadline_s) == ("second", 7)
    assert left == ["third", "first"]


async def test_effects_may_hold_nurseries_and_scopes() -> None:
    """What an effect opens is closed by its exit, in order, whatever stands around it."""
    trace: list[str] = []

    @asynccontextmanager
    async def holding(name: str) -> AsyncGenerator[None, None]:
        stop = trio.Event()

        async def stand() -> None:
            await stop.wait()
            trace.append(f"task of {name}")

        with trio.CancelScope():
            async with trio.open_nursery(), running_beside(stand, stop.set):
                yield
        trace.append(name)

    async def set_up(context: Context, _config: None) -> None:
        for name in ("x", "y"):
            await context.enter(holding(name), name)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await fiber.wait_active()
        await fiber.unmount()
        assert trace == ["task of y", "y", "task of x", "x"]


async def test_an_effect_whose_task_fails_fails_the_plugin() -> None:
    """The plugin fails with the error of the effect's task; its other effects are left."""
    trace: list[str] = []
    go = trio.Event()

    async def fail() -> None:
        await go.wait()
        raise Told("in the effect")

    @asynccontextmanager
    async def failing() -> AsyncGenerator[None, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            yield

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        await context.enter(failing(), "failing")
        await plugin("inner").setup(context, behaviour)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), Behaviour(trace, effects=("x",)))
        await fiber.wait_active()
        go.set()
        await runtime.until(lambda: fiber.state == "FAILED")
        assert str(only_failure(fiber.failure)) == "in the effect"
        assert trace == ["+inner.x", "-inner.x"]


async def test_an_effect_that_only_cancels_fails_the_plugin() -> None:
    """A plugin that its own effect ends without a word has failed, and is not loaded for ever."""

    @asynccontextmanager
    async def short() -> AsyncGenerator[trio.CancelScope, None]:
        with trio.CancelScope() as scope:
            yield scope

    async def set_up(context: Context, scopes: list[trio.CancelScope]) -> None:
        scopes.append(await context.enter(short(), "short"))

    scopes: list[trio.CancelScope] = []
    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), scopes)
        await fiber.wait_active()
        scopes[0].cancel()
        await runtime.until(lambda: fiber.state == "FAILED")
        assert isinstance(fiber.failure, EffectEnded)
        assert len(scopes) == 1


# --- failing and going ----------------------------------------------------------------------------


async def test_a_crash_unloads_dependents_while_effects_stand() -> None:
    """A failed background task fails its plugin; dependents go first; others do not notice."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        behaviour = Behaviour(trace, ("sa",), effects=("x",))
        crashing = runtime.mount(plugin("a"), behaviour)
        user = runtime.mount(plugin("b", ("sa",)), Behaviour(trace, effects=("x",)))
        other = runtime.mount(plugin("other"), Behaviour(trace))
        await runtime.wait_settled()
        behaviour.crash.set()
        await runtime.until(lambda: crashing.state == "FAILED")
        await runtime.wait_settled()
        assert trace == ["+a.x", "+b.x", "-b.x", "-a.x"]
        assert isinstance(crashing.failure, Told)
        assert (user.state, other.state) == ("PENDING", "ACTIVE")


async def test_an_essential_plugin_ends_everything_with_its_own_error() -> None:
    """Everything is unmounted in order, and the block ends with what the plugin failed with."""
    trace: list[str] = []
    behaviour = Behaviour(trace, ("sa",), effects=("x",))
    with pytest.raises(Told, match="a in the background"):  # noqa: PT012 # all of it ends so
        async with open_runtime() as runtime:
            runtime.mount(plugin("a"), behaviour, essential=True)
            runtime.mount(plugin("b", ("sa",)), Behaviour(trace, effects=("x",)))
            await runtime.wait_settled()
            behaviour.crash.set()
            await trio.sleep_forever()
    assert trace == ["+a.x", "+b.x", "-b.x", "-a.x"]


async def test_an_essential_plugin_that_cannot_be_undone_says_so() -> None:
    """Also an error of the last clean-up comes out."""
    with pytest.raises(BaseExceptionGroup) as raised:  # noqa: PT012 # the block's end raises
        async with open_runtime() as runtime:
            behaviour = Behaviour([], effects=("x",), fails_on_leaving=("x",))
            await runtime.mount(plugin("a"), behaviour, essential=True).wait_active()
    assert [str(error) for error in raised.value.exceptions] == ["a.x on leaving"]


@pytest.mark.parametrize("how", ["leaving", "raising", "cancelling"])
async def test_however_the_block_ends_all_is_unmounted_in_order(how: str) -> None:
    """Left, left by an exception, or cancelled: dependents go before what they depend on."""
    trace: list[str] = []
    scope = trio.CancelScope()
    error: Exception | None = None
    with scope:
        try:
            async with open_runtime() as runtime:
                for name, requires in CHAIN.items():
                    behaviour = Behaviour(trace, (f"s{name}",), effects=("x",))
                    runtime.mount(plugin(name, requires), behaviour)
                await runtime.wait_settled()
                trace.clear()
                if how == "raising":
                    raise Told("the block")  # noqa: TRY301 # it is the block that raises
                if how == "cancelling":
                    scope.cancel()
                    await trio.sleep_forever()
        except Told as caught:
            error = caught
    assert trace == ["-c.x", "-b.x", "-a.x"]
    assert (error is not None) == (how == "raising")
    assert scope.cancelled_caught == (how == "cancelling")


async def test_children_go_with_their_parent() -> None:
    """A plugin mounted by another goes when that one does, before its effects are left."""
    trace: list[str] = []

    async def parent(context: Context, _config: None) -> None:
        behaviour = Behaviour(trace, effects=("x",))
        await plugin("parent").setup(context, behaviour)
        context.mount(plugin("child"), Behaviour(trace, effects=("x",)))

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("parent", parent), None)
        await runtime.wait_settled()
        top, child = runtime.inspect().fibers
        assert (top.parent_id, child.parent_id) == (None, top.fiber_id)
        await fiber.unmount()
        assert trace == ["+parent.x", "+child.x", "-child.x", "-parent.x"]
        assert states(runtime) == {}


async def test_a_plugin_can_be_unmounted_while_it_loads() -> None:
    """Its setup is cut short, and what it did is undone."""
    trace: list[str] = []
    async with open_runtime() as runtime:
        fiber = runtime.mount(plugin("a"), Behaviour(trace, effects=("x",), hold=trio.Event()))
        await wait_all_tasks_blocked()
        await fiber.unmount()
        assert trace == ["+a.x", "-a.x"]
        with pytest.raises(Unmounted):
            await fiber.wait_active()


async def test_a_task_that_has_not_begun_is_waited_for() -> None:
    """No effect is left before the last task has ended, even one that never had its first step."""
    trace: list[str] = []

    async def task() -> None:
        trace.append("task")

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        await plugin("a").setup(context, behaviour)
        context.start_soon(task)
        raise Told("at once")

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), Behaviour(trace, effects=("x",)))
        await runtime.until(lambda: fiber.state == "FAILED")
        assert trace == ["+a.x", "task", "-a.x"]


async def test_a_plugin_can_unmount_itself() -> None:
    """A background task that asks for its own plugin's end is cancelled with it."""
    ended: list[str] = []
    fibers: list[Any] = []

    async def set_up(context: Context, _config: None) -> None:
        async def leave() -> None:
            try:
                await fibers[0].unmount()
            finally:
                ended.append("task")

        context.start_soon(leave)

    async with open_runtime() as runtime:
        fibers.append(runtime.mount(Plugin("a", set_up), None))
        await runtime.until(lambda: fibers[0].state == "DISPOSED")
        assert ended == ["task"]


# --- what a context refuses -----------------------------------------------------------------------


async def test_nothing_is_begun_by_a_plugin_on_its_way_out() -> None:
    """Each method that begins something refuses once the plugin unloads; what it has it keeps."""
    refused: list[str] = []

    @asynccontextmanager
    async def last_words(context: Context) -> AsyncGenerator[None, None]:
        yield
        assert context.require(key("sa")) == "sa of a"
        begin: list[Callable[[], object]] = [
            partial(context.provide, key("late"), "late"),
            partial(context.start_soon, trio.sleep_forever),
            partial(context.listen, EmitHook[object]("late"), list[object]().append),
            partial(context.mount, Plugin("late", nothing), None),
        ]
        for each in begin:
            with pytest.raises(ContextClosed):
                each()
            refused.append("one")
        with pytest.raises(ContextClosed):
            await context.enter(last_words(context), "late")

    async def set_up(context: Context, _config: None) -> None:
        await context.enter(last_words(context), "last words")

    async with open_runtime() as runtime:
        runtime.mount(plugin("a"), Behaviour([], ("sa",)))
        fiber = runtime.mount(Plugin("b", set_up, (key("sa"),)), None)
        await fiber.wait_active()
        await fiber.unmount()
    assert len(refused) == 4


async def test_effects_are_entered_in_setup() -> None:
    """Another task cannot enter an effect: it could not be left in that task."""

    @asynccontextmanager
    async def effect() -> AsyncGenerator[None, None]:
        yield

    async def set_up(context: Context, _config: None) -> None:
        async def elsewhere() -> None:
            await context.enter(effect(), "elsewhere")

        context.start_soon(elsewhere)

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await runtime.until(lambda: fiber.state == "FAILED")
        assert isinstance(fiber.failure, ForeignTask)


@pytest.mark.parametrize(("state", "to"), list(product(LEGAL_MOVES, LEGAL_MOVES)))
async def test_an_illegal_move_changes_nothing(state: Any, to: Any) -> None:
    """Each pair of states: what the table has is done, all else raises and leaves all as it was."""
    moves: list[str] = []
    async with open_runtime(lambda fiber: moves.append(fiber.state)) as runtime:
        fiber = runtime.new_fiber(runtime.root, Plugin("a", nothing), None, False, {})
        fiber.state = state
        if to in LEGAL_MOVES[state]:
            fiber.move(to)
            assert (fiber.state, moves) == (to, [to])
        else:
            with pytest.raises(IllegalMove, match=f"a: {state} -> {to}"):
                fiber.move(to)
            assert (fiber.state, moves) == (state, [])
        runtime.forget(fiber)  # it never ran


# --- hooks ----------------------------------------------------------------------------------------

EMIT = EmitHook[list[str]]("emit")
PARALLEL = ParallelHook[list[str]]("parallel")
SERIAL = SerialHook[list[str], str]("serial")
WATERFALL = WaterfallHook[int, int]("waterfall")


async def listening(context: Context, config: tuple[Any, tuple[Callable[..., Any], ...]]) -> None:
    """Set up listeners of one hook."""
    hook, calls = config
    for call in calls:
        context.listen(hook, call)


async def last_one(value: int) -> int:
    """Stand at the end of a waterfall."""
    return value * 100


async def test_emit_tells_everyone_and_then_raises() -> None:
    """Listeners are called in order, each of them, whatever one raises."""

    def tell(told: list[str]) -> None:
        told.append("told")

    def fail(told: list[str]) -> None:
        told.append("failed")
        raise Told("x")

    async with open_runtime() as runtime:
        runtime.mount(Plugin("a", listening), (EMIT, (tell, fail, tell)))
        await runtime.wait_settled()
        told: list[str] = []
        with pytest.raises(ExceptionGroup) as raised:
            runtime.hooks.emit(EMIT, told)
        assert told == ["told", "failed", "told"]
        assert [type(error) for error in raised.value.exceptions] == [Told]


async def test_parallel_runs_all_side_by_side() -> None:
    """All listeners run at a time, and the call ends when all have, whatever one raises."""
    both, halfway = trio.Event(), trio.Event()

    async def first(told: list[str]) -> None:
        halfway.set()
        await both.wait()
        told.append("first")

    async def second(_told: list[str]) -> None:
        await halfway.wait()
        both.set()
        raise Told("x")

    async with open_runtime() as runtime:
        runtime.mount(Plugin("a", listening), (PARALLEL, (first, second)))
        await runtime.wait_settled()
        told: list[str] = []
        with pytest.raises(ExceptionGroup), trio.fail_after(5):
            await runtime.hooks.parallel(PARALLEL, told)
        assert told == ["first"]


async def test_serial_stops_at_the_first_answer() -> None:
    """Listeners are asked in order, until one does not answer None; an empty answer is one."""

    def answering(answer: str | None) -> Callable[[list[str]], Awaitable[str | None]]:
        async def listener(told: list[str]) -> str | None:
            told.append(str(answer))
            return answer

        return listener

    async with open_runtime() as runtime:
        calls = tuple(map(answering, (None, "", "late")))
        fiber = runtime.mount(Plugin("a", listening), (SERIAL, calls))
        await runtime.wait_settled()
        told: list[str] = []
        assert await runtime.hooks.serial(SERIAL, told) == ""
        assert told == ["None", ""]
        await fiber.unmount()
        assert await runtime.hooks.serial(SERIAL, told) is None


async def test_waterfall_wraps() -> None:
    """Each listener sees what the one before passes on, and changes what comes back."""

    async def add(value: int, following: Callable[[int], Awaitable[int]]) -> int:
        return 1 + await following(value + 1)

    async def double(value: int, following: Callable[[int], Awaitable[int]]) -> int:
        return 2 * await following(value * 2)

    async def decide(value: int, _following: Callable[[int], Awaitable[int]]) -> int:
        return value

    async with open_runtime() as runtime:
        assert await runtime.hooks.waterfall(WATERFALL, 3, last_one) == 300
        runtime.mount(Plugin("a", listening), (WATERFALL, (add, double)))
        await runtime.wait_settled()
        assert await runtime.hooks.waterfall(WATERFALL, 3, last_one) == 1 + 2 * (8 * 100)
        runtime.mount(Plugin("b", listening), (WATERFALL, (decide,)))
        await runtime.wait_settled()
        assert await runtime.hooks.waterfall(WATERFALL, 3, last_one) == 1 + 2 * 8


async def test_listeners_are_heard_while_their_plugin_is_active() -> None:
    """One that loads is not heard yet, one that leaves not any more; then it is gone."""
    hold = trio.Event()
    told: list[str] = []

    @asynccontextmanager
    async def leaving(hooks: Any) -> AsyncGenerator[None, None]:
        yield
        hooks.emit(EMIT, told)

    async def set_up(context: Context, _config: None) -> None:
        await context.enter(leaving(context.hooks), "leaving")
        context.listen(EMIT, lambda heard: heard.append("heard"))
        await hold.wait()

    async with open_runtime() as runtime:
        fiber = runtime.mount(Plugin("a", set_up), None)
        await wait_all_tasks_blocked()
        runtime.hooks.emit(EMIT, told)
        assert told == []
        hold.set()
        await fiber.wait_active()
        runtime.hooks.emit(EMIT, told)
        assert told == ["heard"]
        assert runtime.inspect().fibers[0].effects == ("leaving", "listener emit")
        await fiber.unmount()
        assert told == ["heard"]


# --- the picture, the package ---------------------------------------------------------------------


async def test_the_picture_is_true_and_stays_as_it_was() -> None:
    """``inspect`` shows states, effects, tasks, services, and why a plugin waits or failed."""
    async with open_runtime() as runtime:
        runtime.mount(plugin("a"), Behaviour([], ("sa",), effects=("x",)), essential=True)
        runtime.mount(plugin("b", ("sa", "never")), Behaviour([]))
        failed = runtime.mount(plugin("c"), Behaviour([], fails_in_setup=True))
        await runtime.wait_settled()
        picture = runtime.inspect()
        a, b, c = picture.fibers
        assert (a.state, a.is_essential, a.effects) == ("ACTIVE", True, ("x", "service sa"))
        assert a.tasks == ("_crash_when_told",)
        assert (b.state, b.requires, b.missing) == ("PENDING", ("sa", "never"), ("never",))
        assert (c.state, c.failure) == ("FAILED", failed.failure)
        assert [each.fiber_id for each in picture.fibers] == [1, 2, 3]
        (service,) = picture.services
        assert (service.key, service.fiber_id, service.is_visible) == ("sa", 1, True)
        await failed.unmount()
        assert len(picture.fibers) == 3
        assert len(runtime.inspect().fibers) == 2


def test_the_kernel_knows_of_nothing_else() -> None:
    """It imports trio, attrs and the standard library, and of this package what is below it."""
    package = Path(actors.kernel.__file__).parent
    known = {"actors.errors", "actors.tasks", "trio", "attrs", "__future__"}
    known |= {"collections.abc", "contextlib", "functools", "typing"}
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert module in known or module.startswith("actors.kernel."), (path, module)
            elif isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= known, path
