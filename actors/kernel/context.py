"""All that a plugin is given. What it does here lives and ends with its fiber."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio
from attrs import evolve, frozen

from actors.errors import ContextClosed, ForeignTask, UndeclaredService
from actors.kernel.effects import EFFECT_DEADLINE_S, Effect
from actors.kernel.keys import Realm, ServiceKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from actors.kernel.fibers import Fiber, Plugin
    from actors.kernel.hooks import Hook, Hooks
    from actors.kernel.runtime import RuntimeView

T = TypeVar("T")
L = TypeVar("L")
C = TypeVar("C")


@frozen(eq=False)
class Context:
    """What one plugin may do.

    Everything that begins something raises :class:`~actors.errors.ContextClosed` once the plugin
    is on its way out; what it has it may use to the end.
    """

    _fiber: Fiber
    _realms: Mapping[ServiceKey[Any], Realm]

    @property
    def hooks(self) -> Hooks:
        """Where this plugin calls the hooks that it defines."""
        return self._fiber.runtime.hooks

    def inspect(self) -> RuntimeView:
        """Return a picture of the whole runtime as it now is."""
        return self._fiber.runtime.inspect()

    def require(self, key: ServiceKey[T]) -> T:
        """Return a required service, which stands until this plugin is unloaded.

        Raises:
            UndeclaredService: the plugin does not declare that it requires this.
        """
        name = self._fiber.plugin.name
        if key not in self._fiber.plugin.requires:
            raise UndeclaredService(f"{name} does not declare that it requires {key.name}")
        if key not in self._fiber.bound:
            raise ContextClosed(f"{name} is {self._fiber.state}")
        return cast("T", self._fiber.bound[key].value)

    def provide(self, key: ServiceKey[T], value: T) -> None:
        """Offer a service, which others see once this plugin is ACTIVE.

        Raises:
            ServiceConflict: the key has a provider in this realm already.
        """
        self._standing().provide(key, self._realms, value)

    async def enter(
        self, effect: Effect[T], label: str, deadline_s: float = EFFECT_DEADLINE_S
    ) -> T:
        """Enter an Effect and return what it yields; it is left when the plugin is unloaded.

        By then the plugin's tasks have ended and its dependents are gone. Leaving is shielded,
        and cancelled after ``deadline_s`` seconds. Enter it in ``setup`` itself, inside of no
        nursery or cancel scope that closes before ``setup`` returns. A task of an Effect is
        cancelled as soon as the plugin is asked to leave; one that dependents need until they
        are gone must shield itself, and end when the Effect is left.

        Raises:
            ForeignTask: this is not the task in which ``setup`` runs.
        """
        if trio.lowlevel.current_task() is not self._standing().task:
            raise ForeignTask(f"{self._fiber.plugin.name}: Effects are entered in its setup")
        return await self._fiber.effects.enter(effect, label, deadline_s)

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task in the background, cancelled first of all when the plugin unloads.

        An exception of it fails the plugin.
        """
        self._standing().start_soon(partial(task, *args), getattr(task, "__qualname__", repr(task)))

    def listen(self, hook: Hook[L], call: L) -> None:
        """Have ``call`` called by a hook while the plugin is ACTIVE."""
        fiber = self._standing()
        remove = fiber.runtime.hooks.add(hook, call, lambda: fiber.state == "ACTIVE")
        fiber.effects.add(f"listener {hook.name}", remove)

    def mount(self, plugin: Plugin[C], config: C, *, essential: bool = False) -> Fiber:
        """Mount a plugin below this one, with which it goes. See :meth:`Runtime.mount`."""
        return self._standing().mount(plugin, config, self._realms, essential=essential)

    def isolate(self, *keys: ServiceKey[Any]) -> Context:
        """Return a context where these keys mean services of a realm of their own.

        That holds for what is provided and for what is mounted through it.
        """
        realm = Realm(f"{self._fiber.plugin.name}:{'+'.join(key.name for key in keys)}")
        return evolve(self, realms={**self._realms, **dict.fromkeys(keys, realm)})

    def _standing(self) -> Fiber:
        if self._fiber.state not in {"LOADING", "ACTIVE"}:
            raise ContextClosed(f"{self._fiber.plugin.name} is {self._fiber.state}")
        return self._fiber
