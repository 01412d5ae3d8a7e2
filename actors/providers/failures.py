"""What went wrong with a provider, told in one sentence that is safe to record and to show."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httpx
from attrs import frozen

from actors import strict_json
from actors.errors import NotStrictJson
from actors.providers.chat_answer import error_message
from actors.providers.event_stream import StreamFault
from actors.routes import ModelFailure

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SAID_CHARS = 300
"""What is repeated of foreign words."""
_FAILURES: tuple[tuple[type[httpx.HTTPError], str, str], ...] = (
    (
        httpx.ConnectTimeout,
        "provider_timeout",
        "no connection to the provider within {connect:g} s",
    ),
    (httpx.TimeoutException, "provider_timeout", "the provider was silent for {silence:g} s"),
    (httpx.ConnectError, "provider_network", "no connection to the provider"),
    (httpx.ProxyError, "provider_network", "no connection to the provider through the proxy"),
    (httpx.ProtocolError, "provider_protocol", "the provider does not speak HTTP as it should"),
    (httpx.HTTPError, "provider_network", "the connection to the provider broke"),
)
"""The first row that fits names the failure."""
_CUT_SHORT = ("Server disconnected", "peer closed connection")
"""How httpcore and h11 begin to tell of a connection that ended too early, which they count among
the breaches of HTTP."""


@frozen
class Failures:
    """Turns faults into failures.

    ``redact`` takes the key out of foreign words.
    """

    redact: Callable[[str], str]
    connect_timeout_s: float
    silence_timeout_s: float

    def of(self, error: StreamFault | httpx.HTTPError) -> ModelFailure:
        """Return the failure that an error comes to."""
        if isinstance(error, StreamFault):
            return ModelFailure(error.code, self._with_said(error.message, error.said))
        if isinstance(error, httpx.RemoteProtocolError) and str(error).startswith(_CUT_SHORT):
            return ModelFailure("provider_network", "the provider closed the connection too early")
        code, message = next(row[1:] for row in _FAILURES if isinstance(error, row[0]))
        told = message.format(connect=self.connect_timeout_s, silence=self.silence_timeout_s)
        return ModelFailure(code, self._with_said(told, _system_reason(error)))

    def _with_said(self, message: str, said: str) -> str:
        """Return our sentence, and after it foreign words, made harmless and cut."""
        # The key is taken out before the cut, which could leave a part of it.
        said = self.redact(said)
        shown = "".join(char if char.isprintable() else " " for char in said)
        shown = " ".join(shown.split())
        if len(shown) > _MAX_SAID_CHARS:
            shown = f"{shown[: _MAX_SAID_CHARS - 1]}…"
        return f"{message}: {shown}" if shown else message


def refusal(status: int, body: bytes) -> StreamFault:
    """Return what an answer that is an HTTP error says.

    Of a body that is not JSON nothing is told: a page of HTML is for a browser.
    """
    return StreamFault(_status(status), _said(body), "provider_error")


def _said(body: bytes) -> str:
    """Return what an error's body says, if it is JSON: a page of HTML says nothing to a log."""
    try:
        return error_message(strict_json.loads(body.decode())) or ""
    except (NotStrictJson, UnicodeDecodeError):
        return ""


def _status(code: int) -> str:
    """Return a status with its usual reason; the provider's own could hold anything."""
    try:
        return f"the provider answered {code} {HTTPStatus(code).phrase}"
    except ValueError:  # a status that nobody has registered
        return f"the provider answered {code}"


def _system_reason(error: BaseException) -> str:
    """Return what the system, or TLS, says at the bottom of a network error."""
    reason = ""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            reason = below.strerror
        below = _first_of(below) or below.__cause__ or below.__context__
    return reason


def _first_of(error: BaseException) -> BaseException | None:
    """Return the first error of a group: each address that a host has is tried on its own."""
    if not isinstance(error, BaseExceptionGroup):
        return None
    return cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
