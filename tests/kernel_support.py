"""Plugins for tests of the kernel: they leave a trace of what they do, and fail when told to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio
from attrs import define, field

from actors.kernel.fibers import Plugin
from actors.kernel.keys import ServiceKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from actors.kernel.context import Context
    from actors.kernel.runtime import Runtime


def key(name: str) -> ServiceKey[str]:
    """Return a key whose service is a string."""
    return ServiceKey(name)


@define(eq=False)
class Behaviour:
    """What a traced plugin does, and what it does wrong."""

    trace: list[str]
    provides: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    fails_in_setup: bool = False
    fails_on_leaving: tuple[str, ...] = ()
    """The effects whose exit raises."""
    crash: trio.Event = field(factory=trio.Event)
    """Set it, and a background task of the plugin raises."""
    hold: trio.Event | None = None
    """Where ``setup`` waits, once its effects stand."""


class Told(Exception):
    """What a plugin raises when it is told to."""


def plugin(name: str, requires: tuple[str, ...] = ()) -> Plugin[Behaviour]:
    """Return a plugin that traces its effects as ``+name.effect`` and ``-name.effect``."""

    async def set_up(context: Context, behaviour: Behaviour) -> None:
        for each in requires:
            assert context.require(key(each)).startswith(each)
        for each in behaviour.effects:
            await context.enter(_effect(f"{name}.{each}", each, behaviour), each)
        context.start_soon(_crash_when_told, name, behaviour.crash)
        if behaviour.hold is not None:
            await behaviour.hold.wait()
        if behaviour.fails_in_setup:
            raise Told(f"{name} in setup")
        for each in behaviour.provides:
            context.provide(key(each), f"{each} of {name}")

    return Plugin(name, set_up, tuple(map(key, requires)))


@asynccontextmanager
async def _effect(label: str, effect: str, behaviour: Behaviour) -> AsyncGenerator[None, None]:
    behaviour.trace.append(f"+{label}")
    yield
    await trio.lowlevel.checkpoint()
    behaviour.trace.append(f"-{label}")
    if effect in behaviour.fails_on_leaving:
        raise Told(f"{label} on leaving")


async def _crash_when_told(name: str, told: trio.Event) -> None:
    await told.wait()
    raise Told(f"{name} in the background")


def states(runtime: Runtime) -> dict[str, str]:
    """Return the state of each mounted plugin by name."""
    return {view.plugin: view.state for view in runtime.inspect().fibers}


def only_failure(error: BaseException | None) -> BaseException | None:
    """Return the one exception that a fiber failed with, out of its group if it is in one."""
    if isinstance(error, BaseExceptionGroup):
        (inner,) = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return only_failure(inner)
    return error
