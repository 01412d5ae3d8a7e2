"""The client behind ``sessiond invoke`` and ``sessiond plugins``: asks a running Host.

How it ended is a value (:class:`Answered`, :class:`Refused`, :class:`Unanswered`): none of them
is a fault of this program.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, cast

import httpx
from attrs import frozen

from actors import strict_json
from actors.errors import ConfigurationError, NotStrictJson
from actors.validation import document_fault

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from actors.strict_json import JsonValue

CONNECT_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 10.0

_PORTS_N = 65536
# What to do about a refusal that its own words do not tell, since those are for HTTP.
_ADVICE = {
    "invocation_mismatch": "another --id asks for a new turn",
    "body_too_large": "give a shorter TEXT",
}


@frozen
class Answered:
    """The Turn completed."""

    text: str
    """The final assistant message's text; may be empty."""


@frozen
class Refused:
    """The Host answered with a problem: the Turn failed, or was never begun."""

    code: str
    detail: str


@frozen
class Unanswered:
    """No answer of a Host came back; if the request reached it, the Turn may be running."""

    reason: str


Outcome: TypeAlias = Answered | Refused | Unanswered


class HostClient:
    """Asks the Host at ``url`` for Turns; a context manager.

    Proxies that the environment names are not used: the Host is on this machine, and what is
    said to it is nobody else's business.
    """

    def __init__(self, url: str, named_by: str = "--url") -> None:
        """Prepare to speak to ``url``; nothing is sent yet.

        ``named_by`` is where the URL came from, as its user is to be told.

        Raises:
            ConfigurationError: it is not an http or https URL.
        """
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"--url {url!r}: is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigurationError(f"--url {url!r}: is not an http URL")
        if parsed.port is not None and not 0 < parsed.port < _PORTS_N:
            raise ConfigurationError(f"--url {url!r}: a port is a number from 1 to {_PORTS_N - 1}")
        self._url, self._named_by = url.rstrip("/"), named_by
        # No read timeout: a Turn takes as long as it takes.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def invoke(self, invocation_id: str, text: str) -> Outcome:
        """Ask for a Turn and wait for its end, however long that takes.

        Raises:
            NotStrictJson: the text cannot be sent.
        """
        body = strict_json.dumps({"input": text}).encode()
        try:
            response = self._http.post(
                self._address(invocation_id),
                content=body,
                headers={"content-type": "application/json"},
            )
        except httpx.ConnectError as error:
            return self._no_host(error)
        except httpx.HTTPError as error:
            return Unanswered(
                f"the connection to {self._url} broke ({_worded(error)}); what became of the "
                f"turn can be learned by asking again with --id {invocation_id}"
            )
        if response.status_code != HTTPStatus.OK:
            return self._refusal(response)
        match _json(response):
            case {"message": {"content": str(content)}}:
                return Answered(content)
            case _:
                return Unanswered(f"what answers at {self._url} is not a Host")

    def cancel(self, invocation_id: str) -> Refused | Unanswered | None:
        """Ask for a Turn's cancellation, in a bounded time; None when the Host takes it up."""
        try:
            response = self._http.delete(self._address(invocation_id), timeout=CANCEL_TIMEOUT_S)
        except httpx.HTTPError as error:
            return self._no_host(error)
        return None if response.status_code == HTTPStatus.ACCEPTED else self._refusal(response)

    def plugins(self) -> list[dict[str, JsonValue]] | Refused | Unanswered:
        """Return the Host's plugins, as ``runtime-response.schema.json`` has them."""
        address = f"{self._url}/api/v1/runtime"
        try:
            response = self._http.get(address, timeout=READ_TIMEOUT_S)
        except httpx.HTTPError as error:
            return self._no_host(error)
        if response.status_code != HTTPStatus.OK:
            return self._refusal(response)
        answer = _json(response)
        if document_fault("runtime-response", answer) is not None:
            return Unanswered(f"what answers at {self._url} is not a Host")
        return cast("dict[str, list[dict[str, JsonValue]]]", answer)["plugins"]

    def _no_host(self, error: httpx.HTTPError) -> Unanswered:
        return Unanswered(
            f"no Host answers at {self._url}: {_worded(error)}; "
            f"`sessiond serve` starts one, {self._named_by} names another"
        )

    def _address(self, invocation_id: str) -> str:
        return f"{self._url}/api/v1/agent/invocations/{invocation_id}"

    def _refusal(self, response: httpx.Response) -> Refused | Unanswered:
        match _json(response):
            case {"code": "not_found", "detail": str(detail)}:
                advice = f"{self._named_by} must name the Host alone: http://HOST:PORT"
                return Refused("not_found", f"{detail} at {response.request.url}; {advice}")
            case {"code": str(code), "detail": str(detail)}:
                advice = _ADVICE.get(code)
                return Refused(code, detail if advice is None else f"{detail}; {advice}")
            case _:
                return Unanswered(
                    f"{response.request.url} answered {response.status_code} "
                    f"{response.reason_phrase}, and not as a Host does"
                )


def _json(response: httpx.Response) -> JsonValue:
    """Return the body's JSON value; None also for a body that is none."""
    try:
        return strict_json.loads(response.content.decode())
    except (UnicodeDecodeError, NotStrictJson):
        return None


def _worded(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
