"""The API's description: the OpenAPI document, the schema files, and the page that shows both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quart import Blueprint, Response, request

from actors.validation import SCHEMA_DIRECTORY, SCHEMA_SUFFIX
from web.problems import problem

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATIC = Path(__file__).parent / "static"
_DOCUMENT = "openapi.json"
_JSON = "application/json"


def make_openapi() -> Blueprint:
    """Return ``/openapi.json``, the folder it refers to, and ``/reference``, all read once."""
    described = Blueprint("openapi", __name__)
    described.add_url_rule(f"/{_DOCUMENT}", "document", _serve(_served_document(), _JSON))
    for path, name, content_type in (
        ("/reference", "reference.html", "text/html; charset=utf-8"),
        ("/static/reference.js", "reference.js", "text/javascript; charset=utf-8"),
        ("/static/reference.css", "reference.css", "text/css; charset=utf-8"),
    ):
        view = _serve((_STATIC / name).read_bytes(), content_type)
        described.add_url_rule(path, name.replace(".", "-"), view)
    view = _serve_folder(_folder())
    described.add_url_rule("/schemas/<file>", "schema", view)
    described.add_url_rule("/schemas/<folder>/<file>", "schema-below", view)
    return described


def _served_document() -> bytes:
    """Return the document as it stands in the folder, with its references led into the folder.

    They are relative, so that the folder is whole wherever it lies. Under ``/openapi.json`` the
    document lies beside the folder, not in it, and relative to that place they must name it.
    """
    text = (SCHEMA_DIRECTORY / _DOCUMENT).read_text(encoding="utf-8")
    document = json.loads(text, object_hook=_led_into_folder)
    return json.dumps(document, ensure_ascii=False, indent=2).encode()


def _led_into_folder(member: dict[str, Any]) -> dict[str, Any]:
    reference = member.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        member["$ref"] = f"schemas/{reference}"
    return member


def _folder() -> Mapping[str, bytes]:
    """Return the files of the folder by name, byte for byte: nothing else is served from it."""
    files = (SCHEMA_DIRECTORY / _DOCUMENT, *SCHEMA_DIRECTORY.rglob(f"*{SCHEMA_SUFFIX}"))
    return {file.relative_to(SCHEMA_DIRECTORY).as_posix(): file.read_bytes() for file in files}


def _serve_folder(files: Mapping[str, bytes]):  # noqa: ANN202 # a view function, as quart types it
    views = {name: _serve(body, _JSON) for name, body in files.items()}

    async def view(file: str, folder: str | None = None) -> Response:
        found = views.get(file if folder is None else f"{folder}/{file}")
        if found is None:
            return problem(404, "not_found", "no such schema file")
        return await found()

    return view


def _serve(body: bytes, content_type: str):  # noqa: ANN202 # so does this
    etag = hashlib.sha256(body).hexdigest()

    async def view() -> Response:
        if request.if_none_match.contains_weak(etag):
            response = Response(b"", 304)
        else:
            response = Response(body, content_type=content_type)
        response.set_etag(etag)
        response.headers["Cache-Control"] = "no-cache"
        return response

    return view
