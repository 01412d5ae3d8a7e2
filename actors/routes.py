"""Routes and the adapters behind them: the only way to a model."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from attrs import field, frozen

from actors.errors import RouteUnavailable
from actors.values import (
    AssistantMessage,
    Json,
    Message,
    Route,
    ToolSpec,
    Usage,
    require_name,
    require_text,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping


CONNECT_TIMEOUT_S = 10.0
"""How long a connection to a provider may take, unless told otherwise."""
SILENCE_TIMEOUT_S = 300.0
"""How long a provider may be silent, unless told otherwise."""


@frozen
class ModelRequest:
    """All that a model is given in one Step. It is on record before an adapter sees it."""

    route: Route
    system_prompt: str
    """Empty for none."""
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    turn_n: int
    """Which Turn of the session this is, counted from 1."""
    step_id: str
    """Which Step of the session this is: ``turn-N/step-K``."""


@frozen
class Chunk:
    """A piece of the provider's stream, as it came."""

    value: Json


@frozen
class ModelResponse:
    """The stream came to its end: the complete answer."""

    message: AssistantMessage
    finish_reason: str
    usage: Usage | None = None


@frozen
class ModelFailure:
    """The stream came to no answer. ``code`` begins with ``provider_``."""

    code: str
    message: str

    def __attrs_post_init__(self) -> None:
        require_name("model failure code", self.code)
        require_text("model failure message", self.message)


ModelOutput: TypeAlias = Chunk | ModelResponse | ModelFailure


class Adapter(Protocol):
    """Speaks to one provider. It keeps no state of a session: all it needs is in the request."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """Yield the chunks as they come, then exactly one response or failure.

        The caller may close the generator at any yield, also because it is being cancelled, so
        no nursery and no cancel scope may be open across one. Anything raised counts as a
        failure of the provider.
        """
        ...


def _frozen_copy(adapters: Mapping[Route, Adapter]) -> Mapping[Route, Adapter]:
    return MappingProxyType(dict(adapters))


@frozen
class RouteTable:
    """The routes that can be asked for, and the one that is taken when none is.

    Raises:
        RouteUnavailable: the default is not among them.
    """

    default: Route
    adapters: Mapping[Route, Adapter] = field(converter=_frozen_copy)

    def __attrs_post_init__(self) -> None:
        self.resolve(self.default)

    def resolve(self, route: Route | None) -> tuple[Route, Adapter]:
        """Return the route to take, the default for None, and its adapter.

        Raises:
            RouteUnavailable: there is no such route.
        """
        taken = self.default if route is None else route
        adapter = self.adapters.get(taken)
        if adapter is None:
            raise RouteUnavailable(taken.provider, taken.model)
        return taken, adapter
