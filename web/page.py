"""The session page: files as they stand under ``static/``, no build step."""

from __future__ import annotations

from pathlib import Path

from quart import Blueprint, Response

_STATIC = Path(__file__).parent / "static"


def make_page() -> Blueprint:
    """Return ``/`` and the files it needs, read once."""
    page = Blueprint("page", __name__)
    for path, name, content_type in (
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/static/page.js", "page.js", "text/javascript; charset=utf-8"),
        ("/static/page.css", "page.css", "text/css; charset=utf-8"),
    ):
        page.add_url_rule(path, name.replace(".", "-"), _serve(_STATIC / name, content_type))
    return page


def _serve(file: Path, content_type: str):  # noqa: ANN202 # a view function, as quart types it
    body = file.read_bytes()

    async def view() -> Response:
        response = Response(body, content_type=content_type)
        response.headers["Cache-Control"] = "no-cache"
        return response

    return view
