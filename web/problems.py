"""Error answers: RFC 9457 problem bodies, and which error of the domain becomes which."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from quart import Response

from actors import strict_json
from actors.errors import (
    InvocationLive,
    InvocationMismatch,
    InvocationSettled,
    InvocationUnknown,
    RouteUnavailable,
    SessiondError,
    ShuttingDown,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEM_TYPE = "application/problem+json"

_OF_ERROR: tuple[tuple[type[SessiondError], int, str], ...] = (
    (InvocationUnknown, 404, "invocation_not_found"),
    (InvocationMismatch, 422, "invocation_mismatch"),
    (InvocationLive, 409, "invocation_live"),
    (InvocationSettled, 409, "invocation_settled"),
    (RouteUnavailable, 503, "route_unavailable"),
    (ShuttingDown, 503, "shutting_down"),
    # The fault names the file; a body does not.
    (StoreError, 503, "store_failed"),
)

_OF_FAILURE = {"cancelled": 409, "provider_timeout": 504, "store_failed": 503}


def problem_body(status: int, code: str, detail: str) -> bytes:
    """Return the JSON of a problem."""
    return strict_json.dumps(
        {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, "code": code}
    ).encode()


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer that tells a problem."""
    response = Response(problem_body(status, code, detail), status, content_type=PROBLEM_TYPE)
    response.headers.update(headers or {})
    return response


def problem_of(error: SessiondError) -> Response | None:
    """Return the answer for an error of the domain, None if there is none for its kind."""
    for kind, status, code in _OF_ERROR:
        if isinstance(error, kind):
            # A store's message may hold a path, which no body may.
            detail = error.fault if isinstance(error, StoreError) else str(error)
            return problem(status, code, detail)
    return None


def failure_status(code: str) -> int:
    """Return the status that the recorded failure of a Turn is answered with."""
    if code in _OF_FAILURE:
        return _OF_FAILURE[code]
    return 502 if code.startswith("provider_") else 500
