"""Any provider that speaks OpenAI's Chat Completions: streaming, tool calls, usage.

One request is one connection: an idle one that were kept could be closed by the provider at the
very moment in which it is used again, and cost a Turn.

A reason to finish completes an answer. What follows may add to it (usage does), but nothing that
goes wrong from there on undoes it. Until then everything that goes wrong is a failure, told in a
sentence that holds neither the key nor anything a terminal would obey.
"""

from __future__ import annotations

import math
import ssl
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import TYPE_CHECKING

import httpx
import trio
from attrs import define, field, frozen

from actors import strict_json
from actors.errors import ConfigurationError, NotStrictJson
from actors.providers.chat_answer import Answer
from actors.providers.chat_request import request_body
from actors.providers.event_stream import StreamFault, events_of, run_out
from actors.providers.failures import Failures, refusal
from actors.providers.redaction import Secret
from actors.routes import CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S, Chunk, ModelFailure
from actors.strict_json import MAX_BYTES, MAX_DEPTH, is_text
from actors.values import Json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from httpx_sse import ServerSentEvent

    from actors.routes import ModelOutput, ModelRequest
    from actors.strict_json import JsonValue


_TRAILER_S = 5.0
"""How long to read on after the reason to finish, for usage and the end of the stream."""
_MAX_ERROR_BYTES = 65_536
"""What is read of an error's body."""
_MAX_CHUNK_BYTES = MAX_BYTES - 4096
"""UTF-8 bytes of a chunk as it is stored: the event around it takes a little room."""


def _endpoint(url: str) -> httpx.URL:
    """Return where requests go, for a base URL with or without a slash at its end."""
    try:
        base = httpx.URL(url)
        host = base.raw_host.decode("ascii")
        host.encode("idna")  # as the resolver will
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigurationError("the model URL is not valid") from error
    if base.scheme not in {"http", "https"} or not host or "%" in host:
        raise ConfigurationError("the model URL must begin with http:// or https:// and a host")
    if base.port is not None and not 0 < base.port < 65_536:
        raise ConfigurationError("the port of the model URL must be from 1 to 65535")
    if base.userinfo:
        raise ConfigurationError(
            "the model URL holds a user name or a password; a key is given on its own"
        )
    path, mark, query = base.raw_path.partition(b"?")
    raw_path = path.rstrip(b"/") + b"/chat/completions" + mark + query
    return base.copy_with(raw_path=raw_path, fragment=None)


def _model_name(model: str) -> str:
    if not model or not is_text(model):
        raise ConfigurationError("the model's name must be Unicode text, and not empty")
    return model


def _timeout_s(seconds: float) -> float:
    if not seconds > 0:
        raise ConfigurationError("a timeout of the model provider must be more than 0 seconds")
    return seconds


@frozen(eq=False)
class OpenAICompatibleAdapter:
    """Speaks to one model of one provider through a client that its owner closes.

    :func:`open_adapter` makes both. The key is in no ``repr``, output or error of it.

    Raises:
        ConfigurationError: the URL is none that requests could go to, the model has no name, the
            key cannot be sent, or a timeout is not more than 0.
    """

    url: httpx.URL = field(converter=_endpoint)
    """Where requests go; built from the base URL."""
    model: str = field(converter=_model_name)
    _client: httpx.AsyncClient = field(repr=False)
    _secret: Secret = field(converter=Secret, default=None, repr=False, alias="key")
    connect_timeout_s: float = field(converter=_timeout_s, default=CONNECT_TIMEOUT_S)
    silence_timeout_s: float = field(converter=_timeout_s, default=SILENCE_TIMEOUT_S)
    """The longest that the provider may send nothing: before its answer, and within it."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """Yield the chunks as they come, then one response or failure.

        Closed at any yield, or cancelled, it closes the connection at once. It is closed, too,
        before the response or failure is yielded.
        """
        response = await self._open(request)
        if isinstance(response, ModelFailure):
            yield response
            return
        reading = _Reading(events_of(response), self._secret)
        try:
            while isinstance(output := await self._next_output(reading), Chunk):
                yield output
        finally:
            await run_out(reading.events)
            await _close(response)
        yield output

    async def _open(self, request: ModelRequest) -> httpx.Response | ModelFailure:
        """Send the request; return the response if its head says that it is an event stream."""
        try:
            response = await self._client.send(
                self._http_request(request), stream=True, follow_redirects=False
            )
        except httpx.HTTPError as error:
            return self._failure(error)
        is_open = False
        try:
            fault = await self._fault_of(response)
            is_open = fault is None
        finally:
            if not is_open:
                await _close(response)
        return response if fault is None else self._failure(fault)

    def _http_request(self, request: ModelRequest) -> httpx.Request:
        headers = {
            "Accept": "text/event-stream, application/json",
            # What is compressed has no bound before it is unpacked.
            "Accept-Encoding": "identity",
            "Connection": "close",
            "Content-Type": "application/json",
            **self._secret.header(),
        }
        timeout = httpx.Timeout(self.silence_timeout_s, connect=self.connect_timeout_s)
        body = request_body(request, self.model)
        return self._client.build_request(
            "POST", self.url, content=body, headers=headers, timeout=timeout
        )

    async def _fault_of(self, response: httpx.Response) -> StreamFault | None:
        """Tell what is wrong with a response by its head; read its body if it is an error's."""
        if not response.is_success:
            body = b""
            with trio.move_on_after(self.silence_timeout_s):
                body = await _short_body(response)
            return refusal(response.status_code, body)
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        if media_type.lower() not in {"text/event-stream", ""}:
            return StreamFault("the answer is no event stream", media_type)
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            return StreamFault("the answer is compressed, which was not asked for")
        return None

    async def _next_output(self, reading: _Reading) -> ModelOutput:
        try:
            return await reading.next_chunk() or reading.answer.response()
        except (StreamFault, httpx.HTTPError) as error:
            return self._failure(error)

    def _failure(self, error: StreamFault | httpx.HTTPError) -> ModelFailure:
        redact = self._secret.out_of_error
        return Failures(redact, self.connect_timeout_s, self.silence_timeout_s).of(error)


@define(eq=False)
class _Reading:
    """An answer that is being read: each chunk is handed out before it is interpreted."""

    events: AsyncGenerator[ServerSentEvent, None]
    secret: Secret
    answer: Answer = field(init=False)
    _untaken: list[JsonValue] = field(factory=list["JsonValue"], init=False)
    _deadline: float = field(default=math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.answer = Answer(self.secret.out_of_text, self.secret.out_of_json)

    async def next_chunk(self) -> Chunk | None:
        """Take the chunk that was handed out last, and read the next; None after the last one.

        Raises:
            StreamFault: what came is no such stream, and the answer was not finished by then.
            httpx.HTTPError: reading failed, and the answer was not finished by then.
        """
        try:
            while self._untaken:
                self.answer.take(self._untaken.pop())
            data = await self._next_data()
            if data is None or data.strip() == "[DONE]":
                return None
            value = _loads(data)
            self._untaken.append(value)
            return Chunk(_storable(self.secret.out_of_value(value)))
        except (StreamFault, httpx.HTTPError):
            if self.answer.is_finished:
                return None
            raise

    async def _next_data(self) -> str | None:
        if self.answer.is_finished and self._deadline == math.inf:
            self._deadline = trio.current_time() + _TRAILER_S
        with trio.CancelScope(deadline=self._deadline):
            async for event in self.events:
                if event.data:
                    return event.data
        return None


def _loads(data: str) -> JsonValue:
    try:
        return strict_json.loads(data)
    except NotStrictJson as error:
        # Without the place, which is in the provider's words.
        raise StreamFault(f"a chunk is not strict JSON: {error.reason}") from error


def _storable(value: JsonValue) -> Json:
    """Return a chunk as Json that fits into an event.

    Raises:
        StreamFault: it does not; an event is one level deeper, and a little longer.
    """
    try:
        json = Json.of(value)
        if json.text.count("{") + json.text.count("[") >= MAX_DEPTH:
            strict_json.dumps([value])
    except NotStrictJson as error:
        raise StreamFault(f"a chunk cannot be stored: {error.reason}") from error
    if len(json.text) > _MAX_CHUNK_BYTES // 4 and len(json.text.encode()) > _MAX_CHUNK_BYTES:
        raise StreamFault(f"a chunk of more than {_MAX_CHUNK_BYTES} bytes")
    return json


async def _short_body(response: httpx.Response) -> bytes:
    """Return an error's body, or nothing where it is too long or cannot be read."""
    body = bytearray()
    pieces = response.aiter_raw()
    try:
        async for piece in pieces:
            body += piece
            if len(body) > _MAX_ERROR_BYTES:
                return b""
    except httpx.HTTPError:  # the status has said what matters
        return b""
    finally:
        await run_out(pieces)
    return bytes(body)


async def _close(response: httpx.Response) -> None:
    with trio.CancelScope(shield=True):
        await response.aclose()


@asynccontextmanager
async def open_adapter(
    url: str,
    model: str,
    *,
    key: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    silence_timeout_s: float = SILENCE_TIMEOUT_S,
) -> AsyncGenerator[OpenAICompatibleAdapter, None]:
    """Make an adapter for the block, and the client that it speaks through.

    Proxies that the environment names (``HTTPS_PROXY`` and its kin) are used, except to a
    provider on this machine; so are the certificates of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``.
    Leaving the block closes what is still open.

    Raises:
        ConfigurationError: see :class:`OpenAICompatibleAdapter`; or the environment names a proxy
            or certificates that cannot be used.
    """
    endpoint = _endpoint(url)
    try:
        client = httpx.AsyncClient(
            verify=_tls(endpoint),
            trust_env=not _is_on_this_machine(endpoint.host),
            headers={"User-Agent": "sessiond"},
            # None are kept: what a provider sets would be state of a session that is not on record.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(
            "the environment names a proxy or certificates that cannot be used"
        ) from error
    async with client:
        yield OpenAICompatibleAdapter(url, model, client, key, connect_timeout_s, silence_timeout_s)


def _tls(endpoint: httpx.URL) -> ssl.SSLContext:
    if endpoint.scheme == "http":
        # Never used, and trusts nobody: to load the system's certificates takes a while.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.create_ssl_context()


def _is_on_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False
