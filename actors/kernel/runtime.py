"""The fibers of one process, their services and hooks, and a picture of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio
from attrs import frozen

from actors.kernel.fibers import Fiber, Place, Plugin, Realms, Service, State
from actors.kernel.hooks import Hooks
from actors.tasks import running_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from actors.kernel.context import Context

C = TypeVar("C")


@frozen
class FiberView:
    """One mounted plugin at one instant."""

    fiber_id: int
    """Counted from 1 in the order of mounting."""
    parent_id: int | None
    """The fiber it goes with; None for one that the Host itself mounted."""
    plugin: str
    state: State
    is_essential: bool
    requires: tuple[str, ...]
    missing: tuple[str, ...]
    """The required services that no ACTIVE plugin provides: why it is PENDING."""
    effects: tuple[str, ...]
    """What stands, oldest first."""
    tasks: tuple[str, ...]
    failure: BaseException | None
    """Why it is FAILED."""


@frozen
class ServiceView:
    """One service at one instant."""

    key: str
    realm: str
    fiber_id: int
    """Its provider."""
    is_visible: bool
    """Whether others can have it: its provider is ACTIVE."""


@frozen
class RuntimeView:
    """All fibers in the order of mounting, and all services in the order of providing."""

    fibers: tuple[FiberView, ...]
    services: tuple[ServiceView, ...]


class Runtime:
    """All mounted plugins. Made by :func:`open_runtime`."""

    def __init__(self, on_move: Callable[[Fiber], None] | None) -> None:
        self.hooks = Hooks()
        self.fibers: list[Fiber] = []
        """In the order of mounting, without the root and those that are gone."""
        self.services: dict[Place, Service] = {}
        self._on_move = on_move
        self._changed = trio.Event()
        self._mounted_n = 0
        self._failures: list[BaseException] = []
        self.root = Fiber(self, None, 0, Plugin("root", _set_up_nothing), None, False, {})

    def mount(self, plugin: Plugin[C], config: C, *, essential: bool = False) -> Fiber:
        """Mount a plugin and return its fiber, which waits for what the plugin requires.

        ``essential`` is one that cannot be done without: when it fails, everything is
        unmounted, and :func:`open_runtime` raises what it failed with.
        """
        return self.root.mount(plugin, config, {}, essential=essential)

    async def wait_settled(self) -> None:
        """Return once every plugin is ACTIVE, or PENDING or FAILED until something changes."""
        moving = {"LOADING", "UNLOADING"}
        await self.until(lambda: not any(f.state in moving or f.can_load() for f in self.fibers))

    def inspect(self) -> RuntimeView:
        """Return a picture of all fibers and services as they now are."""
        services = [
            ServiceView(
                s.key.name, s.realm.label, s.provider.fiber_id, s.provider.state == "ACTIVE"
            )
            for s in self.services.values()
        ]
        return RuntimeView(tuple(map(_view, self.fibers)), tuple(services))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it does when this returns. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not condition():
            await self._changed.wait()

    # --- for the fibers -----------------------------------------------------------------------

    def new_fiber(
        self, parent: Fiber, plugin: Plugin[C], config: C, essential: bool, realms: Realms
    ) -> Fiber:
        """Return a fiber that is known here and does not run yet."""
        self._mounted_n += 1
        self.fibers.append(
            fiber := Fiber(self, parent, self._mounted_n, plugin, config, essential, realms)
        )
        self.notify()
        return fiber

    def is_next(self, fiber: Fiber) -> bool:
        """Tell whether a fiber can load and none before it can.

        In the order of mounting: who is first with a key or a listener is no chance.
        """
        first = next((each for each in self.fibers if each.can_load()), None)
        return first is fiber or (fiber is self.root and fiber.can_load())

    def forget(self, fiber: Fiber) -> None:
        """Drop a fiber that is DISPOSED."""
        self.fibers = [each for each in self.fibers if each is not fiber]
        self.notify()

    def moved(self, fiber: Fiber) -> None:
        """Tell whoever waits that a fiber is in another state."""
        if self._on_move is not None and fiber is not self.root:
            self._on_move(fiber)
        self.notify()

    def notify(self) -> None:
        """Have everyone in :meth:`until` look again."""
        self._changed.set()
        self._changed = trio.Event()

    def fail(self, failure: BaseException) -> None:
        """Unmount everything: what cannot be done without has failed."""
        self._failures.append(failure)
        self.root.ask_to_unmount()

    async def run(self) -> None:
        """Be the root of all fibers until it is unmounted and they are gone."""
        await self.root.run()
        if len(self._failures) == 1:
            raise self._failures[0]
        if self._failures:
            raise BaseExceptionGroup("essential plugins", self._failures)


async def _set_up_nothing(_context: Context, _config: None) -> None: ...


def _view(fiber: Fiber) -> FiberView:
    parent = fiber.parent
    return FiberView(
        fiber.fiber_id,
        None if parent is None or parent.parent is None else parent.fiber_id,
        fiber.plugin.name,
        fiber.state,
        fiber.is_essential,
        tuple(key.name for key in fiber.plugin.requires),
        tuple(key.name for key in fiber.missing()) if fiber.state == "PENDING" else (),
        fiber.effects.labels,
        tuple(fiber.tasks),
        fiber.failure,
    )


@asynccontextmanager
async def open_runtime(
    on_move: Callable[[Fiber], None] | None = None,
) -> AsyncGenerator[Runtime, None]:
    """Run plugins while the block runs; then unmount them all, dependents first.

    ``on_move`` is called after each move of a fiber and must not raise. Cancelled, everything is
    unmounted in the same order, shielded. When an essential plugin fails, everything is
    unmounted, the block is cancelled, and what the plugin failed with is raised; a group, if
    several did.
    """
    runtime = Runtime(on_move)
    async with running_beside(runtime.run, runtime.root.ask_to_unmount):
        await runtime.until(lambda: runtime.root.state == "ACTIVE")
        yield runtime
