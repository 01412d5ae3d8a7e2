"""All that a plugin is given. What it does here lives and ends with its fiber."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio
from attrs import evolve, frozen

from actors.errors import ContextClosed, ForeignTask, UndeclaredService
from actors.kernel.effects import EFFECT_DEADLINE_S, Effect
from actors.kernel.keys import ROOT_REALM, Realm, ServiceKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.fibers import Fiber, Plugin, Realms
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
    _realms: Realms

    @property
    def hooks(self) -> Hooks:
        """Where this plugin calls the hooks that it defines."""
        return self._fiber.runtime.hooks

    def inspect(self) -> RuntimeView:
        """Return a picture of the whole runtime as it now is."""
        return self._fiber.runtime.inspect()

    def require(self, key: ServiceKey[T]) -> T:
        """Return a service that stands until this plugin is unloaded.

        UndeclaredService if the plugin does not declare that it requires this.
        """
        fiber, name = self._fiber, self._fiber.plugin.name
        if key not in fiber.plugin.requires:
            raise UndeclaredService(f"{name} does not declare that it requires {key.name}")
        if key not in fiber.bound:
            raise ContextClosed(f"{name} is {fiber.state}")
        return cast("T", fiber.bound[key].value)

    def provide(self, key: ServiceKey[T], value: T) -> None:
        """Offer a service, which others see once this plugin is ACTIVE.

        ServiceConflict if the key has a provider in this realm already.
        """
        self._fiber.standing().provide((key, self._realms.get(key, ROOT_REALM)), value)

    async def enter(
        self, effect: Effect[T], label: str, deadline_s: float = EFFECT_DEADLINE_S
    ) -> T:
        """Enter an Effect and return what it yields; it is left when the plugin is unloaded.

        Enter it in ``setup`` (another task: ForeignTask), inside of no nursery or cancel scope
        that closes before ``setup`` returns. It is left once tasks and dependents are gone,
        shielded, and cancelled after ``deadline_s`` seconds. A task of its own is cancelled as
        soon as the plugin is asked to leave: one that dependents need must shield itself.
        """
        if trio.lowlevel.current_task() is not self._fiber.standing().nursery.parent_task:
            raise ForeignTask(f"{self._fiber.plugin.name}: Effects are entered in its setup")
        return await self._fiber.effects.enter(effect, label, deadline_s)

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task in the background, cancelled first of all when the plugin unloads.

        An exception of it fails the plugin.
        """
        fiber, name = self._fiber.standing(), getattr(task, "__qualname__", repr(task))
        fiber.tasks.append(name)  # from now on: it may be told to end before its first step
        fiber.nursery.start_soon(fiber.run_in_background, partial(task, *args), name, name=name)

    def listen(self, hook: Hook[L], call: L) -> None:
        """Have ``call`` called by a hook while the plugin is ACTIVE."""
        fiber = self._fiber.standing()
        remove = fiber.runtime.hooks.add(hook, call, lambda: fiber.state == "ACTIVE")
        fiber.effects.add(f"listener {hook.name}", remove)

    def mount(self, plugin: Plugin[C], config: C, *, essential: bool = False) -> Fiber:
        """Mount a plugin below this one, with which it goes. See :meth:`Runtime.mount`."""
        parent = self._fiber.standing()
        fiber = parent.runtime.new_fiber(parent, plugin, config, essential, self._realms)
        parent.nursery.start_soon(fiber.run, name=plugin.name)
        return fiber

    def isolate(self, *keys: ServiceKey[Any]) -> Context:
        """Return a context where these keys mean services of a realm of their own.

        That holds for what is provided and for what is mounted through it.
        """
        realm = Realm(f"{self._fiber.plugin.name}:{'+'.join(key.name for key in keys)}")
        return evolve(self, realms={**self._realms, **dict.fromkeys(keys, realm)})
