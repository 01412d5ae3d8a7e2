"""A mounted plugin: one task that loads it, stands by it, and undoes it.

To be asked to leave is a cancellation of one scope around all that. So it cuts a ``setup`` short
as well, and a cancellation from outside (of the parent, of the whole runtime) leads through the
same steps: each fiber waits for its dependents, shielded, and that alone keeps the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import trio
from attrs import define, field, frozen

from actors.errors import ContextClosed, EffectEnded, IllegalMove, ServiceConflict, Unmounted
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

    place: Place
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
    is_unmounting: bool = False
    nursery: trio.Nursery = field(init=False)
    _life: trio.CancelScope = field(init=False)
    _causes: list[BaseException] = field(factory=list[BaseException])
    _rests_on: list[Service] = field(factory=list[Service])
    """What it required, and what it could not provide beside: their end may mend a failure."""

    async def wait_active(self) -> None:
        """Return once it is ACTIVE; raise what it failed with, or Unmounted.

        It waits as long as nobody provides what it requires.
        """
        await self.runtime.until(lambda: self.state in {"ACTIVE", "FAILED", "DISPOSED"})
        if self.state == "DISPOSED":
            raise Unmounted(f"{self.plugin.name} is unmounted")
        if self.failure is not None:
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
        self.is_unmounting = True
        self.runtime.notify()
        self.ask_to_leave()

    def retry(self) -> None:
        """Load it again as soon as what it requires is there; IllegalMove if it is not FAILED."""
        if self.state != "FAILED":
            raise IllegalMove(f"{self.plugin.name} is {self.state}: only FAILED is retried")
        self.move("PENDING")

    def ask_to_leave(self) -> None:
        """Have it unload; it comes back when it can, unless it is being unmounted."""
        if self.state in {"LOADING", "ACTIVE"}:
            self._life.cancel()
            self.move("UNLOADING")

    def move(self, state: State) -> None:
        """Go on to ``state``; IllegalMove, with nothing changed, if the table has no such move."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(f"{self.plugin.name}: {self.state} -> {state}")
        self.state = state
        if self.parent is not None:  # the root is nobody's business
            self.runtime.on_move(self)
        self.runtime.notify()

    def standing(self) -> Fiber:
        """Return itself; ContextClosed if it is in no state to begin anything."""
        if self.state not in {"LOADING", "ACTIVE"}:
            raise ContextClosed(f"{self.plugin.name} is {self.state}")
        return self

    def provide(self, place: Place, value: object) -> None:
        """Claim a key in a realm until unloaded."""
        services = self.runtime.services
        other = services.get(place)
        if other is not None:
            if not other.provider._goes_with(self):  # what ends with it cannot mend it
                self._rests_on.append(other)
            name = other.provider.plugin.name
            raise ServiceConflict(f"{self.plugin.name}: {place[0].name} is provided by {name}")
        services[place] = Service(place, self, value)
        self.effects.add(f"service {place[0].name}", lambda: services.pop(place))
        self.runtime.notify()

    def can_load(self) -> bool:
        """Tell whether it is waiting, and has only to be given its turn to load."""
        if self.state == "FAILED":
            there = self.runtime.services.values()
            gone = [service.provider for service in self._rests_on if service not in there]
            return any(provider.state != "UNLOADING" for provider in gone)
        return self.state == "PENDING" and not self.missing()

    def is_moving(self) -> bool:
        """Tell whether it goes on by itself to another state."""
        return self.is_unmounting or self.state in {"LOADING", "UNLOADING"} or self.can_load()

    def missing(self) -> list[ServiceKey[Any]]:
        """Return the required keys that no ACTIVE plugin provides."""
        found = self._required()
        return [key for key in self.plugin.requires if key not in found]

    async def run(self) -> None:
        """Load and unload the plugin as often as it takes, until it is unmounted or cancelled."""
        try:
            while not self.is_unmounting:
                await self.runtime.until(lambda: self.is_unmounting or self.runtime.is_next(self))
                if self.state == "FAILED" and not self.is_unmounting:
                    self.move("PENDING")
                elif not self.is_unmounting:
                    await self._load_and_unload()
        finally:
            self.move("DISPOSED")
            self.runtime.forget(self)

    async def run_in_background(self, task: Callable[[], Awaitable[None]], name: str) -> None:
        """Run a task whose exception fails this plugin alone."""
        try:
            await task()
        except BaseException as error:  # noqa: BLE001 # kept
            self._note(error)
        finally:
            self.tasks.remove(name)
            self.runtime.notify()

    async def _load_and_unload(self) -> None:
        self.bound = self._required()
        self._rests_on = list(self.bound.values())
        self._causes, self.failure, self._life = [], None, trio.CancelScope()
        self.move("LOADING")
        errors, was_asked = list[BaseException](), False
        with self._life:
            async with trio.open_nursery() as self.nursery:
                was_asked = await self._stand()
                self.ask_to_leave()
                with trio.CancelScope(shield=True):
                    await self.runtime.until(lambda: not self.tasks)
                    for fiber in self._others():
                        fiber.ask_to_leave()
                    await self.runtime.until(lambda: not self._others())
                errors = await self.effects.leave()
        self.bound = {}
        self._settle(errors, was_asked)

    async def _stand(self) -> bool:
        """Set the plugin up and stand until it has to leave; tell whether it was asked to."""
        try:
            await self.plugin.setup(Context(self, self.realms), self.config)
            await trio.lowlevel.checkpoint_if_cancelled()  # asked to leave meanwhile
            self.move("ACTIVE")
            await trio.sleep_forever()
        except BaseException as error:  # noqa: BLE001 # kept: the rest of its life goes on
            self._note(error)
        return self.state == "UNLOADING"

    def _settle(self, errors: list[BaseException], was_asked: bool) -> None:
        """Go on to where all that went wrong, in undoing too, leads."""
        if trio.current_effective_deadline() == float("-inf"):  # cancelled from outside
            self.is_unmounting = True
        causes = [*self._causes, *errors]
        if not (causes or was_asked or self.is_unmounting):
            causes = [EffectEnded(f"{self.plugin.name}: cancelled by an Effect of its own")]
        if causes:
            group = BaseExceptionGroup(f"plugin {self.plugin.name}", causes)
            self.failure = group if errors or len(causes) > 1 else causes[0]
            self.move("FAILED")
            # An interrupt, say, is no plugin's own failure, whichever task it came to.
            if self.is_essential or not isinstance(group, Exception):
                self.runtime.fail(self.failure)
        elif not self.is_unmounting:
            self.move("PENDING")

    def _note(self, error: BaseException) -> None:
        """Keep what is left of an exception besides cancellations, and leave because of it."""
        rest = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
        if rest is not None:
            self._causes.extend(rest.exceptions)
            self.ask_to_leave()

    def _required(self) -> dict[ServiceKey[Any], Service]:
        """Return what it requires as far as ACTIVE plugins provide it."""
        places = [(key, self.realms.get(key, ROOT_REALM)) for key in self.plugin.requires]
        found = [self.runtime.services.get(place) for place in places]
        return {it.place[0]: it for it in found if it and it.provider.state == "ACTIVE"}

    def _others(self) -> list[Fiber]:
        """Return the fibers that use this one, and those that are mounted below it."""
        return [fiber for fiber in self.runtime.fibers if self in fiber._stands_on()]

    def _stands_on(self) -> list[Fiber]:
        """Return the providers of what it uses, and the fiber it is mounted below."""
        providers = [service.provider for service in self.bound.values()]
        return providers if self.parent is None else [*providers, self.parent]

    def _goes_with(self, other: Fiber) -> bool:
        """Tell whether it is another, or goes when that one does."""
        return self is other or any(each._goes_with(other) for each in self._stands_on())
