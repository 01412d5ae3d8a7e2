"""The session page: files as they stand under ``static/``, no build step."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quart import Blueprint, Response, request

_STATIC = Path(__file__).parent / "static"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

FILES = (
    "address.js",
    "composer.js",
    "dom.js",
    "entries.js",
    "filter.js",
    "follow.js",
    "heights.js",
    "icon.svg",
    "invocations.js",
    "keep.js",
    "lines.js",
    "longtext.js",
    "outbox.js",
    "page.css",
    "page.js",
    "payload.js",
    "pending.js",
    "prose.js",
    "rows.js",
    "session.js",
    "timeline.css",
    "timeline.js",
    "times.js",
    "toend.js",
    "transcript.css",
    "transcript.js",
    "visible.js",
    "wire.js",
    "words.js",
)
"""What the page needs beside itself. Nothing else under ``static/`` is reached."""


def make_page() -> Blueprint:
    """Return ``/`` and the files it needs, read once."""
    page = Blueprint("page", __name__)
    page.add_url_rule("/", "index", _serve(_STATIC / "index.html"))
    for name in FILES:
        page.add_url_rule(f"/static/{name}", name.replace(".", "-"), _serve(_STATIC / name))
    return page


def _serve(file: Path):  # noqa: ANN202 # a view function, as quart types it
    body = file.read_bytes()
    content_type = _TYPES[file.suffix]
    etag = hashlib.sha256(body).hexdigest()[:32]

    async def view() -> Response:
        if request.if_none_match.contains_weak(etag):
            response = Response(b"", 304)
        else:
            response = Response(body, content_type=content_type)
        response.set_etag(etag)
        # Always to be asked again: after an update of the Host no file is of another release.
        response.headers["Cache-Control"] = "no-cache"
        return response

    return view
