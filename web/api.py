"""The JSON routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from quart import Blueprint, Response, request

from actors import strict_json
from actors.errors import NotStrictJson
from actors.invocations import InvocationFailure, InvocationResult
from actors.validation import document_fault
from actors.values import Route, is_identifier, message_value
from web.problems import failure_status, problem
from web.runtime import runtime_value
from web.session_body import SessionBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from werkzeug.datastructures import ETags

    from actors.invocations import Invocations, InvocationState
    from actors.kernel.runtime import RuntimeView
    from actors.session_log import SessionLog
    from actors.snapshot import Snapshot
    from actors.strict_json import JsonValue


def make_api(
    log: SessionLog, invocations: Invocations, inspect: Callable[[], RuntimeView]
) -> Blueprint:
    """Return the routes over one session, its queue, and the runtime that ``inspect`` shows."""
    api = Blueprint("api", __name__)

    @api.get("/health")
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction] # the route is its use
        return _health(log, is_stopping=invocations.stopping)

    @api.get("/api/v1/sessions/<session_id>")
    async def session(session_id: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        if session_id != log.session_id:
            return problem(404, "session_not_found", "no such session is active here")
        return _session(log.snapshot())

    @api.get("/api/v1/runtime")
    async def runtime() -> Response:  # pyright: ignore[reportUnusedFunction]
        return _json(runtime_value(inspect()))

    path = "/api/v1/agent/invocations/<invocation_id>"

    @api.post(path)
    async def invoke(invocation_id: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        parsed = await _invocation_request(invocation_id)
        if isinstance(parsed, Response):
            return parsed
        text, route = parsed
        outcome = await invocations.submit(invocation_id, text, route)
        if isinstance(outcome, InvocationFailure):
            return problem(failure_status(outcome.code), outcome.code, outcome.message)
        return _json(_result_value(outcome))

    @api.get(path)
    async def state(invocation_id: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _json(_state_value(invocations.state(invocation_id)))

    @api.delete(path)
    async def cancel(invocation_id: str) -> Response:  # pyright: ignore[reportUnusedFunction]
        invocations.cancel(invocation_id)
        return _json(_state_value(invocations.state(invocation_id)), 202)

    return api


def _health(log: SessionLog, *, is_stopping: bool) -> Response:
    status = "stopping" if is_stopping else log.health
    body: dict[str, JsonValue] = {
        "status": status,
        "session_id": log.session_id,
        "last_sequence": log.snapshot().last_sequence,
    }
    if log.fault is not None:
        body["detail"] = log.fault
    return _json(body, 503 if status in {"stopping", "failed"} else 200)


# --- the session --------------------------------------------------------------------------------


def _session(snapshot: Snapshot) -> Response:
    after = _after(snapshot.last_sequence)
    if after is None:
        return problem(
            422, "invalid_request", f"after must be an integer in 0…{snapshot.last_sequence}"
        )
    known = request.args.get("digest")
    if known is not None and known != _digest_at(snapshot, after):
        return problem(409, "digest_mismatch", f"event {after} of this session has another digest")
    digest = None if snapshot.digest is None else snapshot.digest.hex()
    state = f"{snapshot.session_id}.{snapshot.last_sequence}.{digest}"
    etag = f"{state}.{after}"
    if _is_held(request.if_none_match, state, after):
        response = Response(b"", 304)  # before the body is made: that is what it saves
    else:
        body = SessionBody(snapshot, after)
        response = Response(body, content_type="application/json")
        response.content_length = body.length
    response.set_etag(etag)
    # Always to be asked again, which the tag makes cheap.
    response.headers["Cache-Control"] = "no-cache"
    return response


def _after(last_sequence: int) -> int | None:
    """Return the query's ``after``, 0 for none, None if it is no sequence reached so far."""
    values = request.args.getlist("after")
    if not values:
        return 0
    number = _number(values[0]) if len(values) == 1 else None
    return number if number is not None and number <= last_sequence else None


def _number(text: str) -> int | None:
    # Length first: int() is slow on, and at last refuses, what no sequence can be.
    is_number = len(text) <= 19 and text.isascii() and text.isdigit()  # digits of 2**63
    return int(text) if is_number else None


def _digest_at(snapshot: Snapshot, sequence: int) -> str:
    """Return the digest of an event in hex, "" for sequence 0."""
    digest = snapshot.digest_at(sequence)
    return "" if digest is None else digest.hex()


def _is_held(tags: ETags, state: str, after: int) -> bool:
    """Tell whether one of a caller's tags stands for all that it would be answered.

    That of an answer to an earlier ``after`` does, as long as nothing was added: whoever asks
    for what is new is told so at once, and not first sent an empty list for its tag.

    Weak comparison, as RFC 9110 has it for this header: a proxy that compresses weakens tags.
    """
    if tags.star_tag:
        return True
    for tag in tags.as_set(include_weak=True):
        of_state, _, known_after = (tag or "").rpartition(".")  # an empty tag is parsed as None
        number = _number(known_after)
        if of_state == state and number is not None and number <= after:
            return True
    return False


# --- invocations --------------------------------------------------------------------------------


async def _invocation_request(invocation_id: str) -> tuple[str, Route | None] | Response:
    """Return the asked input and route, or the problem with the request."""
    if request.mimetype != "application/json":
        return problem(415, "unsupported_media_type", "the body must be application/json")
    # Raw bytes: the framework's own parser takes NaN and duplicate keys.
    raw = cast("bytes", await request.get_data(as_text=False))
    try:
        body = strict_json.loads(raw.decode())
    except UnicodeDecodeError:
        return problem(400, "not_json", "the body is not UTF-8 text")
    except NotStrictJson as error:
        return problem(400, "not_json", f"the body is not strict JSON: {error}")
    fault = document_fault("invocation-request", body)
    if fault is None and not is_identifier(invocation_id):
        fault = "the path does not end in an invocation id"
    if fault is not None:
        return problem(422, "invalid_request", fault)
    asked = cast("dict[str, str]", body)
    route = cast("dict[str, str] | None", asked.get("route"))
    return asked["input"], None if route is None else Route(route["provider"], route["model"])


def _result_value(result: InvocationResult) -> dict[str, JsonValue]:
    return {
        "invocation_id": result.invocation_id,
        "session_id": result.session_id,
        "turn_id": result.turn_id,
        "steps": result.steps,
        "message": message_value(result.message),
        "finish_reason": result.finish_reason,
        "last_sequence": result.last_sequence,
    }


def _state_value(state: InvocationState) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {"invocation_id": state.invocation_id, "state": state.state}
    if state.result is not None:
        value["result"] = _result_value(state.result)
    if state.failure is not None:
        value["error"] = {"code": state.failure.code, "message": state.failure.message}
    return value


def _json(value: JsonValue, status: int = 200) -> Response:
    return Response(strict_json.dumps(value), status, content_type="application/json")
