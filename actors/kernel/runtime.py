"""The fibers of one process, their services and hooks, and a picture of them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from attrs import frozen

from actors.errors import ContextClosed, Unmounted
from actors.kernel.context import Context
from actors.kernel.fibers import Fiber, Place, Plugin, Realms, Service, State
from actors.kernel.hooks import Hooks
from actors.tasks import running_beside

C = TypeVar("C")
NEWS_OF_THE_END = (trio.Cancelled, ContextClosed, Unmounted)


@frozen
class FiberView:
    """One mounted plugin at one instant.

    Ids count from 1 in the order of mounting. ``missing`` are the required services that no ACTIVE
    plugin provides, why it is PENDING; ``effects`` stand, oldest first.
    """

    fiber_id: int
    parent_id: int | None
    plugin: str
    state: State
    is_essential: bool
    requires: tuple[str, ...]
    missing: tuple[str, ...]
    effects: tuple[str, ...]
    tasks: tuple[str, ...]
    failure: BaseException | None


@frozen
class ServiceView:
    """One service at one instant; others can have it once its provider is ACTIVE."""

    key: str
    realm: str
    fiber_id: int
    is_visible: bool


@frozen
class RuntimeView:
    """All fibers in the order of mounting, and all services in the order of providing."""

    fibers: tuple[FiberView, ...]
    services: tuple[ServiceView, ...]


class Runtime:
    """All mounted plugins. Made by :func:`open_runtime`."""

    def __init__(self, on_move: Callable[[Fiber], None]) -> None:
        self.hooks = Hooks()
        self.fibers: list[Fiber] = []
        """In the order of mounting, without the root and those that are gone."""
        self.services: dict[Place, Service] = {}
        self.failures: list[BaseException] = []
        self.on_move = on_move
        self._changed = trio.Event()
        self._mounted_n = 0
        self.root = Fiber(self, None, 0, Plugin("root", _set_up_nothing), None, False, {})

    def mount(self, plugin: Plugin[C], config: C, *, essential: bool = False) -> Fiber:
        """Mount a plugin and return its fiber, which waits for what the plugin requires.

        ``essential`` is one that cannot be done without: when it fails, everything is
        unmounted, and :func:`open_runtime` raises what it failed with. ContextClosed at the end.
        """
        return Context(self.root, {}).mount(plugin, config, essential=essential)

    async def wait_settled(self) -> None:
        """Return once every plugin is ACTIVE, or PENDING or FAILED until something changes."""
        await self.until(lambda: not any(fiber.is_moving() for fiber in self.fibers))

    def inspect(self) -> RuntimeView:
        """Return a picture of all fibers and services as they now are."""
        fibers = [
            FiberView(
                it.fiber_id,
                (it.parent and it.parent.fiber_id) or None,  # the root has 0
                it.plugin.name,
                it.state,
                it.is_essential,
                tuple(key.name for key in it.plugin.requires),
                tuple(key.name for key in it.missing()) if it.state == "PENDING" else (),
                it.effects.labels,
                tuple(it.tasks),
                it.failure,
            )
            for it in self.fibers
        ]
        services = [
            ServiceView(key.name, realm.label, it.provider.fiber_id, it.provider.state == "ACTIVE")
            for (key, realm), it in self.services.items()
        ]
        return RuntimeView(tuple(fibers), tuple(services))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it does when this returns. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not condition():
            await self._changed.wait()

    def new_fiber(
        self, parent: Fiber, plugin: Plugin[C], config: C, essential: bool, realms: Realms
    ) -> Fiber:
        """Return a fiber that is known here and does not run yet."""
        self._mounted_n += 1
        fiber = Fiber(self, parent, self._mounted_n, plugin, config, essential, realms)
        self.fibers.append(fiber)
        self.notify()
        return fiber

    def is_next(self, fiber: Fiber) -> bool:
        """Tell whether a fiber can load and none before it can.

        In the order of mounting: who is first with a key or a listener is no chance.
        """
        return fiber is next((f for f in (self.root, *self.fibers) if f.can_load()), None)

    def forget(self, fiber: Fiber) -> None:
        """Drop a fiber that is DISPOSED."""
        self.fibers = [each for each in self.fibers if each is not fiber]
        self.notify()

    def notify(self) -> None:
        """Have everyone in :meth:`until` look again."""
        self._changed.set()
        self._changed = trio.Event()

    def fail(self, failure: BaseException) -> None:
        """Unmount everything: what cannot be done without has failed."""
        self.failures.append(failure)
        self.root.ask_to_unmount()


async def _set_up_nothing(_context: Context, _config: None) -> None: ...


@asynccontextmanager
async def open_runtime(
    on_move: Callable[[Fiber], None] = lambda _: None,
) -> AsyncGenerator[Runtime, None]:
    """Run plugins while the block runs; then unmount them all, dependents first.

    ``on_move`` is called after each move of a fiber and must not raise. Cancelled, everything is
    unmounted in the same order, shielded. When an essential plugin fails, everything is unmounted,
    the block is cancelled, and what the plugin failed with is raised; a group, if that is not all.
    """
    runtime, block = Runtime(on_move), trio.CancelScope()
    failures = runtime.failures

    async def run() -> None:
        await runtime.root.run()
        block.cancel()

    try:
        async with running_beside(run, runtime.root.ask_to_unmount):
            await runtime.until(lambda: runtime.root.state == "ACTIVE")
            with block:
                yield runtime
    except BaseException as error:
        if not failures:
            raise
        # How the block learned of the end is no failure of its own.
        rest = BaseExceptionGroup("", [error]).split(
            lambda each: each in failures or isinstance(each, NEWS_OF_THE_END)
        )[1]
        failures += rest.exceptions if rest is not None else ()
    if len(failures) > 1:
        raise BaseExceptionGroup("essential plugins", failures)
    if failures:
        raise failures[0]
