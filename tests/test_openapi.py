"""The OpenAPI document: sound by its own rules, and held to the application route by route."""

from __future__ import annotations

import ast
import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urljoin

import pytest
import trio
from http_support import INVOCATIONS, served
from openapi_spec_validator import OpenAPIV31SpecValidator
from openapi_support import (
    DOCUMENT,
    Operation,
    answer_fault,
    codes_of,
    operation_of,
    operations,
    resolved,
    undocumented,
)

import web
from actors.errors import OutcomeUnknown
from actors.invocations import Invocations
from actors.validation import SCHEMA_BASE, SCHEMA_DIRECTORY, SCHEMA_SUFFIX, schemas
from web.app import BODY_BYTES, create_app
from web.problems import failure_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from http_support import Served

OPERATIONS = list(operations())
HELD = {"provider": "held", "model": "held"}
SESSION = "/api/v1/sessions/default"
FAILURES = {"interrupted", "step_limit", "hook_error", "cancelled", "store_failed"} | {
    f"provider_{kind}" for kind in ("error", "network", "protocol", "timeout")
}


def references(value: Any) -> Iterator[str]:
    """Yield every reference within a JSON value."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if isinstance(members.get("$ref"), str):
            yield members["$ref"]
        for member in members.values():
            yield from references(member)
    elif isinstance(value, list):
        for element in cast("list[Any]", value):
            yield from references(element)


# --- the document by itself -----------------------------------------------------------------------


def test_it_is_valid() -> None:
    """It is a valid OpenAPI 3.1 document, by the meta-schema and the rules beyond it."""
    assert re.fullmatch(r"3\.1\.[0-9]+", DOCUMENT["openapi"])
    place = (SCHEMA_DIRECTORY / "openapi.json").as_uri()
    assert list(OpenAPIV31SpecValidator(DOCUMENT, base_uri=place).iter_errors()) == []


def test_an_invalid_one_is_told() -> None:
    """The check above sees an operation that has lost what it must have."""
    spoilt = json.loads(json.dumps(DOCUMENT))
    del spoilt["paths"]["/health"]["get"]["responses"]["200"]
    spoilt["components"]["responses"]["Health"] = {"content": {}}
    place = (SCHEMA_DIRECTORY / "openapi.json").as_uri()
    assert list(OpenAPIV31SpecValidator(spoilt, base_uri=place).iter_errors())


def test_references() -> None:
    """Each leads to a place in the document or a file beside it, and none of its own is unused."""
    found = set(references(DOCUMENT))
    for reference in found:
        path = reference.partition("#")[0]
        assert not path or (SCHEMA_DIRECTORY / path).is_file(), reference
    named = {
        f"#/components/{kind}/{name}"
        for kind, members in DOCUMENT["components"].items()
        for name in members
    }
    unused = named - found
    assert unused == {"#/components/responses/MethodNotAllowed"}  # of methods that are not there


def test_it_refers_to_every_document() -> None:
    """Each schema file at the top of the folder is reached from the document."""
    reached: set[str] = set()
    pending = {urljoin(SCHEMA_BASE, reference) for reference in references(DOCUMENT)}
    while pending:
        file = pending.pop().partition("#")[0]
        name = file.removeprefix(SCHEMA_BASE).removesuffix(SCHEMA_SUFFIX)
        if file.endswith("openapi.json") or name in reached or not file.endswith(SCHEMA_SUFFIX):
            continue
        reached.add(name)
        pending |= {urljoin(file, reference) for reference in references(schemas()[name])}
    assert reached == set(schemas())


def test_operations_are_told() -> None:
    """Every operation has an id of its own, a summary, and a tag that the document explains."""
    ids = [operation.described["operationId"] for operation in OPERATIONS]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for operation in OPERATIONS:
        assert operation.described["summary"]
        assert set(operation.described["tags"]) <= tags
        for response in operation.responses.values():
            assert response["description"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: f"{op.method} {op.path}")
def test_problems_are_told_by_status(operation: Operation) -> None:
    """A failure's failures are problems with codes; every operation can be refused or fail."""
    assert {403, 500, 503} <= operation.responses.keys()
    for status, response in operation.responses.items():
        HTTPStatus(status)
        assert bool(codes_of(response)) == (status >= 400)
        if operation.method == "POST" and status in {409, 500, 502, 504}:
            own = codes_of(response) & FAILURES
            assert {failure_status(code) for code in own} == {status}


def test_failures_have_their_status() -> None:
    """What a Turn fails with is documented at the status that it is answered with."""
    (post,) = [operation for operation in OPERATIONS if operation.method == "POST"]
    for code in FAILURES:
        assert code in codes_of(post.responses[failure_status(code)])


# --- the document against the code ----------------------------------------------------------------


def test_routes() -> None:
    """The document names every route and method of the application, and no others."""
    app = create_app(*cast("Any", (None, None, None)))
    routes: set[tuple[str, str]] = set()
    static = re.compile(DOCUMENT["components"]["parameters"]["StaticName"]["schema"]["pattern"])
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<([a-z_]+)>", r"{\1}", rule.rule)
        folder, _, name = path.rpartition("/")
        if folder == "/static":
            assert static.search(name), path
            path = "/static/{file}"
        assert rule.methods is not None
        routes |= {(method, path) for method in rule.methods}
    assert routes == {(operation.method, operation.path) for operation in OPERATIONS}


def codes_in_code() -> set[str]:
    """Return the problem codes that stand in the web layer's code beside a status."""
    found: set[str] = set()
    for file in Path(web.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            constants: list[ast.expr] = []
            if isinstance(node, ast.Call):
                constants = node.args
            elif isinstance(node, ast.Tuple):
                constants = node.elts
            elif isinstance(node, ast.Dict):
                for pair in zip(node.keys, node.values, strict=True):
                    found |= _code_beside_status([each for each in pair if each is not None])
            found |= _code_beside_status(constants)
    return found


def _code_beside_status(nodes: list[ast.expr]) -> set[str]:
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    is_status = any(type(value) is int and 400 <= value < 600 for value in values)
    texts = [value for value in values if isinstance(value, str)]
    return {text for text in texts if is_status and re.fullmatch("[a-z_]+", text)}


def test_every_code_is_documented() -> None:
    """A code that the web layer answers with stands in the document at some status."""
    found = codes_in_code()
    assert {"invalid_request", "session_not_found", "store_failed", "body_timeout"} <= found
    documented = {
        code
        for response in DOCUMENT["components"]["responses"].values()
        for code in codes_of(response)
    }
    assert found <= documented
    refused = Path(web.__file__).parent.joinpath("guard.py").read_text(encoding="utf-8")
    for code in codes_of(undocumented()[403]):
        assert f'"{code}"' in refused


def test_schema_files_are_enumerated() -> None:
    """The values of the path parameters of the folder are its files."""
    parameters = DOCUMENT["components"]["parameters"]
    values = {name: set(parameters[name]["schema"].get("enum", ())) for name in parameters}
    top = {name for name in schemas() if "/" not in name}
    below = set(schemas()) - top
    assert values["SchemaName"] == {f"{name}{SCHEMA_SUFFIX}" for name in top} | {"openapi.json"}
    assert values["SchemaFolder"] == {name.partition("/")[0] for name in below}
    assert values["SchemaNameBelow"] == {
        f"{name.partition('/')[2]}{SCHEMA_SUFFIX}" for name in below
    }


# --- as it is served ------------------------------------------------------------------------------


async def test_it_is_served_as_it_stands() -> None:
    """Both addresses answer the document, the one outside the folder with references into it."""
    async with served() as host:
        within = await host.client.get("/schemas/openapi.json")
        outside = await host.client.get("/openapi.json")
        assert within.content == (SCHEMA_DIRECTORY / "openapi.json").read_bytes()
        led = json.dumps(outside.json()).replace('"$ref": "schemas/', '"$ref": "')
        assert json.loads(led) == DOCUMENT
        assert outside.json() != DOCUMENT


@pytest.mark.parametrize("start", ["/openapi.json", "/schemas/openapi.json"])
async def test_references_resolve_over_http(start: str) -> None:
    """Followed from either address by URL, every reference leads to its place in a served file."""
    async with served() as host:
        files: dict[str, Any] = {}
        pending = {urljoin(str(host.client.base_url), start)}
        while pending:
            address = pending.pop()
            file, _, pointer = address.partition("#")
            if file not in files:
                response = await host.client.get(file)
                assert response.status_code == 200, file
                files[file] = response.json()
                pending |= {urljoin(file, each) for each in references(files[file])}
            found = files[file]
            for token in pointer.split("/")[1:]:
                found = found[token]
        assert len(files) == len(schemas()) + 1
        for name, schema in schemas().items():
            assert (
                files[str(host.client.base_url.join(f"/schemas/{name}{SCHEMA_SUFFIX}"))] == schema
            )


@pytest.mark.parametrize(
    "path",
    ["nothing.json", "README.md", "samples/index.json", "common/nothing.json", "..%2fopenapi.json"],
)
async def test_nothing_else_of_the_folder_is_served(path: str) -> None:
    """A file that is no schema is not found, nor is anything outside the folder."""
    async with served() as host:
        response = await host.client.get(f"/schemas/{path}")
        assert response.status_code == 404
        assert answer_fault(undocumented()[404], response.headers, response.content) is None


async def test_reference_page() -> None:
    """The page and all it loads come from this Host, its text from no markup, nothing inline."""
    async with served() as host:
        page = await host.client.get("/reference")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src 'self'" in page.headers["content-security-policy"]
        loaded = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        assert set(loaded) >= {"/static/reference.js", "/static/reference.css", "/openapi.json"}
        assert all(address.startswith("/") for address in loaded)
        for address in loaded:
            assert (await host.client.get(address)).status_code == 200
        script = (await host.client.get("/static/reference.js")).text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
        assert not re.search(r"https?://|<style|style=|onclick", script + page.text)


# --- real answers ---------------------------------------------------------------------------------


class Witness:
    """Holds each answer to the document, and keeps which statuses of which operation it saw."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str, int]] = set()
        self.codes: set[str] = set()

    def see(self, response: httpx.Response) -> None:
        request = response.request
        target = request.url.raw_path.decode()
        self.see_raw(
            request.method, target, response.status_code, response.headers, response.content
        )

    def see_raw(self, method: str, target: str, status: int, headers: Any, body: bytes) -> None:
        operation = operation_of(method, target)
        if operation is None:
            described = undocumented()[status]
        else:
            described = operation.responses[status]
            self.seen.add((method, operation.path, status))
        fault = answer_fault(described, headers, body, is_head=method == "HEAD")
        assert fault is None, f"{method} {target} {status}: {fault}"
        if status >= 400 and method != "HEAD":
            self.codes.add(json.loads(body).get("code", ""))


async def ask_every_route(host: Served, witness: Witness) -> None:
    """Ask each operation without a body for its example, and be refused by the guard."""
    for operation in OPERATIONS:
        path = operation.path
        for parameter in operation.parameters:
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        if operation.method in {"GET", "HEAD", "OPTIONS"}:
            first = await host.client.request(operation.method, path)
            witness.see(first)
            if 304 in operation.responses:
                known = {"If-None-Match": first.headers["etag"]}
                witness.see(await host.client.request(operation.method, path, headers=known))
        foreign = {"Host": "evil.example"}
        witness.see(await host.client.request(operation.method, path, headers=foreign))


async def ask_wrongly(host: Served, witness: Witness) -> None:
    """Make every mistake that a request can make."""
    one, client = f"{INVOCATIONS}/one", host.client
    witness.see(await client.get("/nothing"))
    witness.see(await client.put(one))
    witness.see(await client.get("/health", headers={"Origin": "http://evil.example"}))
    witness.see(await client.get("/health", headers={"Sec-Fetch-Site": "cross-site"}))
    for method in ("GET", "HEAD"):
        witness.see(await client.request(method, "/api/v1/sessions/other"))
        witness.see(await client.request(method, f"{SESSION}?after=x"))
        witness.see(await client.request(method, f"{SESSION}?digest=x"))
        witness.see(await client.request(method, f"{INVOCATIONS}/unknown"))
        witness.see(await client.request(method, "/schemas/nothing"))
        witness.see(await client.request(method, "/schemas/common/nothing"))
        witness.see(await client.request(method, "/static/nothing.js"))
    witness.see(await client.delete(f"{INVOCATIONS}/unknown"))
    witness.see(await client.post(one, content=b"x"))
    json_type = {"Content-Type": "application/json"}
    witness.see(await client.post(one, content=b"x", headers=json_type))
    witness.see(await host.invoke("one", {}))
    witness.see(
        await host.invoke("one", {"input": "x", "route": {"provider": "no", "model": "no"}})
    )


async def live_and_die(host: Served, witness: Witness) -> None:
    """Take one invocation to its answer and others to their cancellation."""
    witness.see(await host.invoke("done", {"input": "hello"}))
    witness.see(await host.invoke("done", {"input": "other"}))
    for method in ("GET", "HEAD", "DELETE"):
        witness.see(await host.client.request(method, f"{INVOCATIONS}/done"))
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            witness.see(await host.invoke("held", {"input": "wait", "route": HELD}))

        nursery.start_soon(wait)
        await host.held.asked.wait()
        witness.see(await host.client.get(f"{INVOCATIONS}/held"))
        witness.see(await host.invoke("held", {"input": "wait"}))
        witness.see(await host.client.delete(f"{INVOCATIONS}/held"))
    witness.see(await host.client.get(f"{INVOCATIONS}/held"))
    witness.see(await host.client.get(SESSION))


async def promise(host: Served, witness: Witness, body_length: int) -> None:
    """Announce a body and send one byte of it."""
    raw = await host.say(
        b"POST %b/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n{" % (INVOCATIONS.encode(), body_length)
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    witness.see_raw("POST", f"{INVOCATIONS}/half", int(status.split()[1]), headers, body)


async def break_everything(host: Served, witness: Witness, patch: pytest.MonkeyPatch) -> None:
    """Have the store fail, the code fail, and the Host stop."""

    def in_doubt(_rows: object) -> None:
        raise OutcomeUnknown("a failed fsync", Path("nowhere"))

    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    patch.setattr(cast("Any", host.log)._writer._store, "commit", in_doubt)
    witness.see(await host.invoke("lost", {"input": "hello"}))
    witness.see(await host.client.get("/health"))
    for name in ("state", "submit"):
        patch.setattr(Invocations, name, broken)
    for method in ("GET", "HEAD", "DELETE"):
        witness.see(await host.client.request(method, f"{INVOCATIONS}/done"))
    witness.see(await host.invoke("done", {"input": "hello"}))
    patch.undo()
    await host.invocations.shut_down()
    witness.see(await host.client.get("/health"))
    witness.see(await host.client.head("/health"))
    witness.see(await host.invoke("late", {"input": "hello"}))


async def test_answers_are_those_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a real Host answers (status, headers, body, code) stands in the document.

    And what stands there was seen, but for what only a provider, a bug in another view or the
    last moment of the listener brings about.
    """
    witness = Witness()
    async with served(tmp_path / "session.sqlite3", body_timeout_s=0.2) as host:
        await ask_wrongly(host, witness)
        await live_and_die(host, witness)
        await host.invoke("one", {"input": "for the example"})
        await ask_every_route(host, witness)
        await promise(host, witness, 9)  # a body that stalls
        await promise(host, witness, BODY_BYTES + 1)
        await break_everything(host, witness, monkeypatch)
    unseen = {
        (operation.method, operation.path, status)
        for operation in OPERATIONS
        for status in operation.responses
    } - witness.seen
    post = ("POST", "/api/v1/agent/invocations/{invocation_id}")
    assert {status for *of, status in unseen if tuple(of) == post} == {502, 504}
    assert {status for *of, status in unseen if tuple(of) != post} == {500, 503}
    assert witness.codes >= set().union(
        *(
            codes_of(resolved(DOCUMENT["components"]["responses"][name]))
            for name in ("Forbidden", "NotFound", "MethodNotAllowed", "InvocationConflict")
        )
    )
