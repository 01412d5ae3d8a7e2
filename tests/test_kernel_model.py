"""Plugins that come, go, fail and are replaced at random, beside a plain model of the same.

The model knows no tasks and no effects: from who is mounted, what each requires and how each
behaves it computes who must be ACTIVE, PENDING or FAILED. The trace of the effects tells whether
each was undone once, in reverse, and after those of the plugin's dependents.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import Behaviour, plugin, states

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
    has_child: bool


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


names = st.sampled_from(NAMES)
mounts = st.builds(
    Mount,
    names,
    st.frozensets(names, max_size=2),
    st.integers(0, 2),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, True]),
)
operations = st.lists(
    st.one_of(
        mounts, mounts, st.builds(Unmount, names), st.builds(Crash, names), st.builds(Mend, names)
    ),
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
    requires: dict[str, frozenset[str]] = field(factory=dict[str, frozenset[str]])
    """Of every plugin there ever was, by instance."""

    async def do(self, operation: Mount | Unmount | Crash | Mend) -> None:
        if isinstance(operation, Mount):
            await self.unmount(operation.name)
            self.mount(operation)
        elif isinstance(operation, Unmount):
            await self.unmount(operation.name)
        elif operation.name in self.fibers:
            it, fiber = self.model.plugins[operation.name], self.fibers[operation.name]
            if isinstance(operation, Mend):
                it.fails_in_setup = self.behaviours[operation.name].fails_in_setup = False
                if it.state == "FAILED":
                    fiber.retry()
                    it.state = "PENDING"
            elif it.state == "ACTIVE":
                behaviour = self.behaviours[operation.name]
                behaviour.crash.set()
                behaviour.crash = trio.Event()  # for the next load
                await self.runtime.until(lambda: fiber.state == "FAILED")
                it.state = "FAILED"
        self.model.settle()
        await self.runtime.wait_settled()

    def mount(self, mount: Mount) -> None:
        instance = f"{mount.name}#{len(self.requires)}"
        self.requires[instance] = mount.requires
        effects = tuple(f"e{n}" for n in range(mount.effects_n))
        behaviour = Behaviour(
            self.trace,
            (mount.name,),
            effects,
            fails_in_setup=mount.fails_in_setup,
            fails_on_leaving=effects if mount.fails_on_leaving else (),
        )
        traced = plugin(instance, tuple(sorted(mount.requires)))
        set_up = partial(with_child, traced, f"{instance}/child") if mount.has_child else None
        mounted = traced if set_up is None else Plugin(instance, set_up, traced.requires)
        self.behaviours[mount.name] = behaviour
        self.fibers[mount.name] = self.runtime.mount(mounted, behaviour)
        self.requires[f"{instance}/child"] = frozenset({mount.name})
        self.model.plugins[mount.name] = Modelled(mount, instance, mount.fails_in_setup)

    async def unmount(self, name: str) -> None:
        fiber = self.fibers.pop(name, None)
        if fiber is None:
            return
        try:
            await fiber.unmount()
        except BaseExceptionGroup:
            assert self.behaviours[name].fails_on_leaving
        del self.model.plugins[name]

    def check(self) -> None:
        expected: dict[str, str] = {}
        for it in self.model.plugins.values():
            expected[it.instance] = it.state
            if it.mount.has_child and it.state == "ACTIVE":
                expected[f"{it.instance}/child"] = "ACTIVE"
        assert states(self.runtime) == expected
        picture = self.runtime.inspect()
        visible = {service.key for service in picture.services if service.is_visible}
        for fiber in picture.fibers:
            if fiber.state == "ACTIVE":
                assert visible >= set(fiber.requires)
            else:
                assert (fiber.effects, fiber.tasks) == ((), ())
        assert self.standing() == {
            name: [f"e{n}" for n in range(effects_n)]
            for name, effects_n in self.expected_effects(expected).items()
        }

    def expected_effects(self, expected: dict[str, str]) -> dict[str, int]:
        counts = {it.instance: it.mount.effects_n for it in self.model.plugins.values()}
        counts |= {name: 1 for name in expected if name.endswith("/child")}
        active = [name for name, state in expected.items() if state == "ACTIVE"]
        return {name: counts[name] for name in active if counts[name]}

    def standing(self) -> dict[str, list[str]]:
        """Go through the trace, checking each undoing, and return what stands at its end."""
        standing: dict[str, list[str]] = {}
        for entry in self.trace:
            instance, _, effect = entry[1:].partition(".")
            if entry[0] == "+":
                standing.setdefault(instance, []).append(effect)
                continue
            assert standing[instance].pop() == effect, "undone out of order, or twice"
            if not standing[instance]:
                del standing[instance]
            # The child's effects lie within its parent's; all others may rest on this plugin.
            service = instance.partition("#")[0]
            users = [name for name in standing if service in self.requires[name]]
            if "/" not in instance:
                assert [name for name in users if not self.is_self(name, instance)] == []
        return standing

    @staticmethod
    def is_self(name: str, instance: str) -> bool:
        return name == instance


async def with_child(
    traced: Plugin[Behaviour], child: str, context: Context, behaviour: Behaviour
) -> None:
    await traced.setup(context, behaviour)
    context.mount(plugin(child), Behaviour(behaviour.trace, effects=("e0",)))


async def go_through(operations: Sequence[Mount | Unmount | Crash | Mend]) -> None:
    with trio.fail_after(60):
        async with open_runtime() as runtime:
            run = Run(runtime)
            for operation in operations:
                await run.do(operation)
                run.check()
        assert run.standing() == {}
        assert states(runtime) == {}


@given(operations)
@settings(max_examples=150, deadline=None)
def test_the_kernel_does_what_the_model_says(
    operations: list[Mount | Unmount | Crash | Mend],
) -> None:
    """After each operation plugins stand as they must; at the end nothing of them is left."""
    trio.run(go_through, operations)


@pytest.mark.stress
@given(operations)
@settings(max_examples=5000, deadline=None)
def test_the_kernel_does_what_the_model_says_in_depth(
    operations: list[Mount | Unmount | Crash | Mend],
) -> None:
    """The same, many more times."""
    trio.run(go_through, operations)
