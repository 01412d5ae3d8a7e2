"""The quart-trio application: its routes, and what becomes of their errors.

It owns nothing that must be closed: the server may cancel it at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from actors.errors import SessiondError
from web.api import make_api
from web.openapi import make_openapi
from web.page import make_page
from web.problems import problem, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from quart import Response

    from actors.invocations import Invocations
    from actors.kernel.runtime import RuntimeView
    from actors.session_log import SessionLog

BODY_BYTES = 1_048_576
BODY_TIMEOUT_S = 30
"""How long a request's body may take; one that stalls is answered 408."""

_log = structlog.get_logger()

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "body_too_large",
}
# Worded for whoever reads them in a shell: the framework's own are for a browser's address bar.
_DETAILS = {
    "bad_request": "the request is no sound HTTP",
    "not_found": "there is no such route",
    "method_not_allowed": "the route does not take this method",
    "body_timeout": "the body did not come in time",
    "body_too_large": f"a body has {BODY_BYTES:,} bytes at most",
}


def create_app(
    log: SessionLog,
    invocations: Invocations,
    inspect: Callable[[], RuntimeView],
    body_timeout_s: float = BODY_TIMEOUT_S,
) -> QuartTrio:
    """Return the application over one session and its queue, in the runtime ``inspect`` shows."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES
    app.config["BODY_TIMEOUT"] = body_timeout_s
    app.config["RESPONSE_TIMEOUT"] = None  # a client may read as slowly as it likes
    app.url_map.merge_slashes = False  # a path with two in a row is another path, and not found
    app.register_blueprint(make_api(log, invocations, inspect))
    app.register_blueprint(make_page())
    app.register_blueprint(make_openapi())
    app.register_error_handler(HTTPException, _http_problem)
    app.register_error_handler(SessiondError, _domain_problem)
    app.register_error_handler(Exception, _unexpected_problem)
    return app


async def _http_problem(error: HTTPException) -> Response:
    status = error.code or 500
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        headers["Allow"] = ", ".join(sorted(error.valid_methods))
    code = _CODES.get(status, f"http_{status}")
    return problem(status, code, _DETAILS.get(code, error.description or error.name), headers)


async def _domain_problem(error: SessiondError) -> Response:
    response = problem_of(error)
    return await _unexpected_problem(error) if response is None else response


async def _unexpected_problem(error: Exception) -> Response:
    _log.error("request failed", exc_info=error)
    return problem(500, "internal_error", "an error that should not happen")
