"""A mounted plugin: one task that loads it, stands by it, and undoes it.

How a plugin leaves, whatever made it leave:

1. It is UNLOADING from the first instant: nobody new can come to depend on it.
2. Its background tasks end, being cancelled.
3. Its dependents unload, and what is mounted below it goes. They may still use all it has.
4. Its Effects are left in reverse.

To be asked to leave is a cancellation of one scope around all that. So it cuts a ``setup`` short
as well, and a cancellation from outside (of the parent, of the whole runtime) leads through the
same steps: each fiber waits for its dependents, shielded, and that alone keeps the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import trio
from attrs import define, field, frozen

from actors.errors import EffectEnded, IllegalMove, ServiceConflict, Unmounted
from actors.kernel.context import Context
from actors.kernel.effects import EffectStack
from actors.kernel.keys import ROOT_REALM, Realm, ServiceKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from actors.kernel.runtime import Runtime

C = TypeVar("C")
Realms: TypeAlias = "Mapping[ServiceKey[Any], Realm]"
Place: TypeAlias = tuple[ServiceKey[Any], Realm]
State: TypeAlias = Literal["PENDING", "LOADING", "ACTIVE", "UNLOADING", "FAILED", "DISPOSED"]

LEGAL_MOVES: Mapping[State, frozenset[State]] = {
    "PENDING": frozenset({"LOADING", "DISPOSED"}),
    "LOADING": frozenset({"ACTIVE", "UNLOADING"}),
    "ACTIVE": frozenset({"UNLOADING"}),
    "UNLOADING": frozenset({"PENDING", "FAILED", "DISPOSED"}),
    "FAILED": frozenset({"PENDING", "DISPOSED"}),
    "DISPOSED": frozenset(),
}
"""Where each state leads. What was begun is undone in UNLOADING: nothing stands after it."""


@frozen
class Plugin(Generic[C]):
    """What can be mounted: a name, how to set it up with a config, and what it requires."""

    name: str
    setup: Callable[[Context, C], Awaitable[None]]
    requires: tuple[ServiceKey[Any], ...] = ()


@frozen(eq=False)
class Service:
    """What one fiber provides."""

    key: ServiceKey[Any]
    realm: Realm
    provider: Fiber
    value: Any


@define(eq=False)
class Fiber:
    """One plugin where it is mounted. Made by ``mount`` alone."""

    runtime: Runtime
    parent: Fiber | None
    fiber_id: int
    plugin: Plugin[Any]
    config: Any
    is_essential: bool
    realms: Realms
    state: State = "PENDING"
    failure: BaseException | None = None
    """What went wrong when it was last loaded or unloaded; None if nothing did."""
    effects: EffectStack = field(factory=EffectStack)
    tasks: list[str] = field(factory=list[str])
    bound: dict[ServiceKey[Any], Service] = field(factory=dict[ServiceKey[Any], Service])
    """The required services, from LOADING until UNLOADING is over."""
    task: trio.lowlevel.Task | None = None
    _nursery: trio.Nursery | None = None
    _life: trio.CancelScope = field(factory=trio.CancelScope)
    _causes: list[BaseException] = field(factory=list[BaseException])
    _rests_on: dict[Place, Service | None] = field(factory=dict[Place, "Service | None"])
    """What it required and what it could not provide: a change of these may mend a failure."""
    _is_asked_to_leave: bool = False
    _is_unmounting: bool = False

    # --- for whoever mounted it ---------------------------------------------------------------

    async def wait_active(self) -> None:
        """Return once it is ACTIVE; raise what it failed with, or Unmounted.

        It waits as long as nobody provides what it requires.
        """
        await self.runtime.until(lambda: self.state in {"ACTIVE", "FAILED", "DISPOSED"})
        if self.state == "DISPOSED":
            raise Unmounted(f"{self.plugin.name} is unmounted")
        if self.state == "FAILED" and self.failure is not None:
            raise self.failure

    async def unmount(self) -> None:
        """Unload it after its dependents, and return once it is gone.

        Raises what went wrong in undoing; all was attempted, and it is gone. Cancelled, only the
        wait ends. An Effect or a dependent of it that called this would wait for itself.
        """
        known = self.failure
        self.ask_to_unmount()
        await self.runtime.until(lambda: self.state == "DISPOSED")
        if self.failure is not None and self.failure is not known:
            raise self.failure

    def ask_to_unmount(self) -> None:
        """Begin what :meth:`unmount` waits for."""
        self._is_unmounting = True
        self.ask_to_leave()

    def retry(self) -> None:
        """Load it again as soon as what it requires is there; IllegalMove if it is not FAILED."""
        if self.state != "FAILED":
            raise IllegalMove(f"{self.plugin.name} is {self.state}: only FAILED is retried")
        self.move("PENDING")

    # --- for the kernel -----------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Have it unload; it comes back when it can, unless it is being unmounted."""
        self._is_asked_to_leave = True
        self._life.cancel()
        self.runtime.notify()

    def move(self, state: State) -> None:
        """Go on to ``state``; IllegalMove, with nothing changed, if the table has no such move."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.plugin.name}: {self.state} -> {state}")
        self.state = state
        self.runtime.moved(self)

    def provide(self, key: ServiceKey[Any], realms: Realms, value: object) -> None:
        """Claim a key in its realm until unloaded."""
        place = (key, realms.get(key, ROOT_REALM))
        services = self.runtime.services
        if place in services:
            self._rests_on[place] = services[place]
            other = services[place].provider.plugin.name
            raise ServiceConflict(f"{self.plugin.name}: {key.name} is provided by {other}")
        services[place] = Service(*place, self, value)
        self.effects.add(f"service {key.name}", lambda: services.pop(place))

    def start_soon(self, task: Callable[[], Awaitable[None]], name: str) -> None:
        """Start a background task."""
        assert self._nursery is not None  # whoever calls has seen that it stands
        self.tasks.append(name)  # from now on: it may be told to end before its first step
        self._nursery.start_soon(self._run_in_background, task, name, name=name)

    def mount(self, plugin: Plugin[C], config: C, realms: Realms, *, essential: bool) -> Fiber:
        """Start a fiber below this one."""
        assert self._nursery is not None  # whoever calls has seen that it stands
        child = self.runtime.new_fiber(self, plugin, config, essential, realms)
        self._nursery.start_soon(child.run, name=plugin.name)
        return child

    def can_load(self) -> bool:
        """Tell whether it is waiting, and has only to be given its turn to load."""
        if self.state == "FAILED":
            return any(self.runtime.services.get(p) is not s for p, s in self._rests_on.items())
        return self.state == "PENDING" and not self.missing()

    def missing(self) -> list[ServiceKey[Any]]:
        """Return the required keys that no ACTIVE plugin provides."""
        return [key for key in self.plugin.requires if self._visible(key) is None]

    def _visible(self, key: ServiceKey[Any]) -> Service | None:
        service = self.runtime.services.get((key, self.realms.get(key, ROOT_REALM)))
        return service if service is not None and service.provider.state == "ACTIVE" else None

    # --- its life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Load and unload the plugin as often as it takes, until it is unmounted or cancelled."""
        self.task = trio.lowlevel.current_task()
        try:
            while not self._is_unmounting:
                await self.runtime.until(lambda: self._is_unmounting or self.runtime.is_next(self))
                if self.state == "FAILED" and not self._is_unmounting:
                    self.move("PENDING")
                elif not self._is_unmounting:
                    await self._load_and_unload()
        finally:
            self.move("DISPOSED")
            self.runtime.forget(self)

    async def _load_and_unload(self) -> None:
        services = [self._visible(key) for key in self.plugin.requires]
        self.bound = {each.key: each for each in services if each is not None}
        self._rests_on = {(each.key, each.realm): each for each in self.bound.values()}
        self._causes, self._is_asked_to_leave, self.failure = [], False, None
        self._life = trio.CancelScope()
        self.move("LOADING")
        errors: list[BaseException] = []
        with self._life:
            async with trio.open_nursery() as self._nursery:
                await self._stand()
                self._life.cancel()
                self.move("UNLOADING")
                with trio.CancelScope(shield=True):
                    await self.runtime.until(lambda: not self.tasks)
                    for fiber in self._others():
                        fiber.ask_to_leave()
                    await self.runtime.until(lambda: not self._others())
                errors = await self.effects.leave()
        self.bound = {}
        self._settle(errors)

    async def _stand(self) -> None:
        """Set the plugin up and stand until it has to leave, for whatever reason."""
        try:
            await self.plugin.setup(Context(self, self.realms), self.config)
            await trio.lowlevel.checkpoint_if_cancelled()  # asked to leave meanwhile
            self.move("ACTIVE")
            await trio.sleep_forever()
        except BaseException as error:  # noqa: BLE001 # kept: the rest of its life goes on
            self._note(error)

    def _others(self) -> list[Fiber]:
        """Return the fibers that use this one, and those that are mounted below it."""
        return [
            fiber
            for fiber in self.runtime.fibers
            if fiber.parent is self or any(s.provider is self for s in fiber.bound.values())
        ]

    def _settle(self, errors: list[BaseException]) -> None:
        """Note what went wrong, and go on to where that leads."""
        if trio.current_effective_deadline() == float("-inf"):  # cancelled from outside
            self._is_unmounting = True
        causes = [*self._causes, *errors]
        if not (causes or self._is_asked_to_leave or self._is_unmounting):
            causes = [EffectEnded(f"{self.plugin.name}: cancelled by an Effect of its own")]
        if len(causes) == 1 and not errors:
            self.failure = causes[0]
        elif causes:
            self.failure = BaseExceptionGroup(f"plugin {self.plugin.name}", causes)
        if not self._is_unmounting:
            self.move("PENDING" if self.failure is None else "FAILED")
        if self.failure is not None and self.is_essential:
            self.runtime.fail(self.failure)

    async def _run_in_background(self, task: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await task()
        except BaseException as error:  # noqa: BLE001 # kept: it fails this plugin alone
            self._note(error)
        finally:
            self.tasks.remove(name)
            self.runtime.notify()

    def _note(self, error: BaseException) -> None:
        """Keep what is left of an exception besides cancellations, and leave because of it."""
        rest: BaseException | None = error
        if isinstance(error, BaseExceptionGroup):
            rest = cast("BaseExceptionGroup[BaseException]", error).split(trio.Cancelled)[1]
        if rest is not None and not isinstance(rest, trio.Cancelled):
            self._causes.append(rest)
            self._life.cancel()
