"""Plugins that come, go, fail and are replaced at random, beside a plain model of the same.

The model knows no tasks and no effects: from who is mounted, what each requires and how each
behaves it computes who must be ACTIVE, PENDING or FAILED. The trace of the effects tells whether
each was undone once, in reverse, and after those of the plugin's dependents.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio
from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import Behaviour, key, plugin, states

from actors.kernel.fibers import Plugin
from actors.kernel.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.context import Context
    from actors.kernel.fibers import Fiber
    from actors.kernel.runtime import Runtime

NAMES = ("p0", "p1", "p2", "p3", "p4")
"""Each provides the service of its own name. One is mounted once at a time, and may be replaced."""


@frozen
class Mount:
    """Mount a plugin; where one of its name is mounted, that is unmounted first."""

    name: str
    requires: frozenset[str]
    effects_n: int
    fails_in_setup: bool
    fails_on_leaving: bool
    child: str
    """"none", one that is "plain", or a "user" of what its parent provides."""


@frozen
class Unmount:
    name: str


@frozen
class Crash:
    """Have a background task raise, if the plugin is ACTIVE."""

    name: str


@frozen
class Mend:
    """Have the plugin's setup succeed from now on, and retry it if it is FAILED."""

    name: str


@frozen
class Together:
    """Ask for all of these at once, and wait for none: a replacement meets what it replaces."""

    operations: list[Mount | Unmount]


Operation: TypeAlias = Mount | Unmount | Crash | Mend | Together

names = st.sampled_from(NAMES)
mounts = st.builds(
    Mount,
    names,
    st.frozensets(names, max_size=2),
    st.integers(0, 2),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["none", "none", "plain", "user"]),
)
unmounts = st.builds(Unmount, names)
together = st.builds(Together, st.lists(st.one_of(mounts, unmounts), min_size=2, max_size=6))
operations = st.lists(
    st.one_of(mounts, mounts, unmounts, together, st.builds(Crash, names), st.builds(Mend, names)),
    max_size=25,
)


@define(eq=False)
class Modelled:
    """What the model knows of one mounted plugin."""

    mount: Mount
    instance: str
    fails_in_setup: bool
    state: str = "PENDING"
    loads_n: int = 0
    rests_on: dict[str, tuple[str, int] | None] = field(factory=dict[str, "tuple[str, int] | None"])
    """For each required service, who provided it when the plugin was loaded last, and which of
    its loads that was."""


@define(eq=False)
class Model:
    """All mounted plugins by name, in no order: the outcome must not depend on one."""

    plugins: dict[str, Modelled] = field(factory=dict[str, Modelled])

    def settle(self) -> None:
        """Let everything happen that must."""
        while any(self.step(each) for each in self.plugins.values()):
            pass

    def step(self, it: Modelled) -> bool:
        """Make one move of a plugin, if there is one to make."""
        now = {name: self.provider(name) for name in it.mount.requires}
        if it.state in {"ACTIVE", "FAILED"} and now != it.rests_on:
            it.state = "PENDING"
        elif it.state == "PENDING" and None not in now.values():
            it.rests_on = now
            it.loads_n += 1
            it.state = "FAILED" if it.fails_in_setup else "ACTIVE"
        else:
            return False
        return True

    def provider(self, name: str) -> tuple[str, int] | None:
        it = self.plugins.get(name)
        return (it.instance, it.loads_n) if it is not None and it.state == "ACTIVE" else None


@define(eq=False)
class Run:
    """The kernel and the model, going through the same."""

    runtime: Runtime
    trace: list[str] = field(factory=list[str])
    model: Model = field(factory=Model)
    fibers: dict[str, Fiber] = field(factory=dict[str, "Fiber"])
    behaviours: dict[str, Behaviour] = field(factory=dict[str, Behaviour])
    mounted_n: int = 0

    async def do(self, operation: Operation) -> None:
        if isinstance(operation, Mount):
            await self.unmount(operation.name)
            self.mount(operation)
        elif isinstance(operation, Unmount):
            await self.unmount(operation.name)
        elif isinstance(operation, Together):
            for each in operation.operations:
                self.ask_to_unmount(each.name)
                if isinstance(each, Mount):
                    self.mount(each)
        elif isinstance(operation, Mend):
            self.mend(operation.name)
        else:
            await self.crash(operation.name)
        self.model.settle()
        await self.runtime.wait_settled()

    def mount(self, mount: Mount) -> None:
        self.mounted_n += 1
        instance = f"{mount.name}#{self.mounted_n}"
        effects = tuple(f"e{n}" for n in range(mount.effects_n))
        behaviour = Behaviour(
            self.trace,
            (mount.name,),
            effects,
            fails_in_setup=mount.fails_in_setup,
            fails_on_leaving=effects if mount.fails_on_leaving else (),
        )
        requires = tuple(sorted(mount.requires))
        mounted = Plugin(instance, partial(set_up, mount, instance), tuple(map(key, requires)))
        self.behaviours[mount.name] = behaviour
        self.fibers[mount.name] = self.runtime.mount(mounted, behaviour)
        self.model.plugins[mount.name] = Modelled(mount, instance, mount.fails_in_setup)

    def ask_to_unmount(self, name: str) -> None:
        if name in self.fibers:
            self.fibers.pop(name).ask_to_unmount()
            del self.model.plugins[name]

    async def unmount(self, name: str) -> None:
        fiber = self.fibers.get(name)
        self.ask_to_unmount(name)
        if fiber is not None:
            try:
                await fiber.unmount()
            except BaseExceptionGroup:
                assert self.behaviours[name].fails_on_leaving

    def mend(self, name: str) -> None:
        if name in self.fibers:
            it = self.model.plugins[name]
            it.fails_in_setup = self.behaviours[name].fails_in_setup = False
            if it.state == "FAILED":
                self.fibers[name].retry()
                it.state = "PENDING"

    async def crash(self, name: str) -> None:
        if name in self.fibers and self.model.plugins[name].state == "ACTIVE":
            behaviour, fiber = self.behaviours[name], self.fibers[name]
            behaviour.crash.set()
            behaviour.crash = trio.Event()  # for the next load
            await self.runtime.until(lambda: fiber.state == "FAILED")
            self.model.plugins[name].state = "FAILED"

    def check(self) -> None:
        expected: dict[str, str] = {}
        effects: dict[str, list[str]] = {}
        for it in self.model.plugins.values():
            expected[it.instance] = it.state
            if it.state == "ACTIVE":
                effects[it.instance] = [f"e{n}" for n in range(it.mount.effects_n)]
            if it.state == "ACTIVE" and it.mount.child != "none":
                expected[f"{it.instance}/child"] = "ACTIVE"
                effects[f"{it.instance}/child"] = ["e0"]
        assert states(self.runtime) == expected
        assert standing(self.trace) == {name: labels for name, labels in effects.items() if labels}
        active = [name for name, state in expected.items() if state == "ACTIVE"]
        tasks = tasks_below(self.runtime.root.nursery.parent_task)
        assert sorted(tasks) == sorted([*expected, *("_crash_when_told" for _ in active)])
        picture = self.runtime.inspect()
        visible = {service.key for service in picture.services if service.is_visible}
        for fiber in picture.fibers:
            if fiber.state == "ACTIVE":
                assert visible >= set(fiber.requires)
            else:
                assert (fiber.effects, fiber.tasks) == ((), ())


async def set_up(mount: Mount, instance: str, context: Context, behaviour: Behaviour) -> None:
    """Set up a traced plugin that tells whose services it uses, and may have a child."""
    users_of = [context.require(key(name)).split(" of ")[1] for name in sorted(mount.requires)]
    behaviour.trace.append(f"@{instance}.{' '.join(users_of)}")
    await plugin(instance).setup(context, behaviour)
    if mount.child != "none":
        child = plugin(f"{instance}/child", (mount.name,) if mount.child == "user" else ())
        context.mount(child, Behaviour(behaviour.trace, effects=("e0",)))


def standing(trace: list[str]) -> dict[str, list[str]]:
    """Go through the trace, checking each undoing, and return what stands at its end."""
    stands: dict[str, list[str]] = {}
    providers: dict[str, list[str]] = {}
    for entry in trace:
        instance, _, what = entry[1:].partition(".")
        if entry[0] == "@":
            providers[instance] = what.split()
        elif entry[0] == "+":
            stands.setdefault(instance, []).append(what)
        else:
            assert stands[instance].pop() == what, "undone out of order, or twice"
            if not stands[instance]:
                del stands[instance]
            assert f"{instance}/child" not in stands
            assert [name for name in stands if instance in providers.get(name, ())] == []
    return stands


def tasks_below(task: trio.lowlevel.Task) -> list[str]:
    """Return the names of all tasks that a task has begun, and of those below them."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [name for child in children for name in (child.name, *tasks_below(child))]


async def go_through(operations: Sequence[Operation]) -> None:
    with trio.fail_after(60):
        async with open_runtime() as runtime:
            run = Run(runtime)
            for operation in operations:
                await run.do(operation)
                run.check()
        assert standing(run.trace) == {}
        assert states(runtime) == {}
        assert tasks_below(trio.lowlevel.current_task()) == []


@given(operations)
@settings(max_examples=400, deadline=None)
def test_the_kernel_does_what_the_model_says(
    operations: list[Operation],
) -> None:
    """After each operation plugins stand as they must; at the end nothing of them is left."""
    trio.run(go_through, operations)


@pytest.mark.stress
@given(operations)
@settings(max_examples=8000, deadline=None)
def test_the_kernel_does_what_the_model_says_in_depth(
    operations: list[Operation],
) -> None:
    """The same, many more times."""
    trio.run(go_through, operations)
