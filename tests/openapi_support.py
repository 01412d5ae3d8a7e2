"""The OpenAPI document as tests read it: its operations, and whether an answer is one of theirs."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from attrs import frozen
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012, Schema

from actors.validation import SCHEMA_BASE, SCHEMA_DIRECTORY, schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METHODS = ("get", "head", "post", "delete", "options")
DOCUMENT: dict[str, Any] = json.loads((SCHEMA_DIRECTORY / "openapi.json").read_text("utf-8"))
TRANSPORT = {"connection", "content-length", "content-type", "date", "transfer-encoding"}
"""Headers that are the server's, or said elsewhere in the document."""
_REGISTRY = Registry[Schema]().with_resources(
    (str(schema["$id"]), Resource[Schema](schema, DRAFT202012)) for schema in schemas().values()
)


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of the document, or what it refers to within the document."""
    reference = part.get("$ref")
    if reference is None:
        return part
    found: Any = DOCUMENT
    for token in cast("str", reference).removeprefix("#/").split("/"):
        found = found[token]
    return found


def dereferenced(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the one in the folder that it refers to."""
    if "$ref" not in schema:
        return schema
    looked_up = _REGISTRY.resolver(base_uri=SCHEMA_BASE).lookup(schema["$ref"])
    return cast("dict[str, Any]", looked_up.contents)


@frozen
class Operation:
    """One operation of the document."""

    method: str
    path: str
    described: Mapping[str, Any]

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """The parameters, those of the path among them, each with its schema at hand."""
        both = [*DOCUMENT["paths"][self.path].get("parameters", []), *self._own()]
        found = [resolved(parameter) for parameter in both]
        return [{**each, "schema": dereferenced(each["schema"])} for each in found]

    def _own(self) -> list[dict[str, Any]]:
        return list(self.described.get("parameters", []))

    @property
    def responses(self) -> dict[int, dict[str, Any]]:
        """The responses by status."""
        return {
            int(status): resolved(response)
            for status, response in self.described["responses"].items()
        }

    @property
    def body_schema(self) -> dict[str, Any] | None:
        """The schema of the request's body, None where it takes none."""
        body = self.described.get("requestBody")
        return None if body is None else dereferenced(body["content"]["application/json"]["schema"])


def operations() -> Iterator[Operation]:
    """Yield all operations in the document's order."""
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                yield Operation(method.upper(), path, item[method])


@cache
def _templates() -> dict[str, re.Pattern[str]]:
    return {
        path: re.compile(re.sub(r"\\\{[a-z_]+\\\}", "[^/]+", re.escape(path)))
        for path in sorted(DOCUMENT["paths"], key=lambda path: "{" in path)
    }


def operation_of(method: str, target: str) -> Operation | None:
    """Return the operation that a request's method and target mean, None if there is none."""
    path = re.sub("^/+", "/", unquote(target.partition("?")[0]))  # as routing takes a beginning
    for template, pattern in _templates().items():
        if pattern.fullmatch(path):
            described = DOCUMENT["paths"][template].get(method.lower())
            return None if described is None else Operation(method, template, described)
    return None


def undocumented() -> dict[int, dict[str, Any]]:
    """Return what is answered to a path or a method that the document does not name."""
    named = DOCUMENT["components"]["responses"]
    return {404: named["NotFound"], 405: named["MethodNotAllowed"], 403: named["Forbidden"]}


def answer_fault(
    described: dict[str, Any], headers: Mapping[str, str], body: bytes, *, is_head: bool = False
) -> str | None:
    """Return why headers and body are not those of a described response; None if they are."""
    named = {name.lower(): resolved(header) for name, header in described["headers"].items()}
    found = {name.lower(): value for name, value in headers.items()}
    if surplus := found.keys() - named.keys() - TRANSPORT:
        return f"headers without a description: {surplus}"
    for name, header in named.items():
        if name not in found:
            return f"no header {name}"
        if not _fits(header["schema"], found[name]):
            return f"header {name}: {found[name]}"
    content: dict[str, Any] = described.get("content", {})
    if is_head or not content:
        return "a body where none is described" if body else None
    media_type = found["content-type"].partition(";")[0]
    if media_type not in content:
        return f"content type {media_type}"
    value = json.loads(body) if media_type.endswith("json") else body.decode()
    return None if _fits(content[media_type]["schema"], value) else f"body {body[:300]!r}"


def _fits(schema: dict[str, Any], value: Any) -> bool:
    based = {"$id": f"{SCHEMA_BASE}openapi.json", "allOf": [schema]}
    return Draft202012Validator(based, registry=_REGISTRY).is_valid(value)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON


def codes_of(described: dict[str, Any]) -> set[str]:
    """Return the problem codes that a described response names."""
    problem = described.get("content", {}).get("application/problem+json")
    if problem is None:
        return set()
    code = problem["schema"]["allOf"][1]["properties"]["code"]
    return {*code.get("enum", ()), *code.get("examples", ())}
