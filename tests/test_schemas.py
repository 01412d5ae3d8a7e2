"""The schema files: sound, closed, portable, and one for each payload and document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import pytest
from jsonschema import Draft202012Validator
from jsonschema_rs import Draft202012Validator as FastValidator
from jsonschema_rs import RegexOptions
from jsonschema_rs import Registry as FastRegistry

from actors.events import EVENT_CLASSES
from actors.validation import SCHEMA_BASE, SCHEMA_DIRECTORY, SCHEMA_SUFFIX, schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = sorted(schemas())
# All that may stand in a file. What is not here is read differently by some validator, or has
# not been looked at: `format`, `multipleOf`, `default` and the dynamic references among it.
ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
APPLICATORS = {"allOf", "oneOf", "if", "then", "not"}
# Each assertion with the type that it speaks of: beside it, or ajv's strict mode complains.
ASSERTED_TYPE = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "maxProperties": "object",
    "items": "array",
    "minItems": "array",
    "pattern": "string",
    "minLength": "string",
    "minimum": "integer",
}
KEYWORDS = ANNOTATIONS | APPLICATORS | {"$ref", "type", "const", "enum", *ASSERTED_TYPE}
LARGEST_BOUND = 2**31
# Places of free form: whatever is there is somebody else's.
OPEN = {("common/tool", "parameters"), ("session-event", "payload")}
# What every dialect of regular expressions reads alike, those without a look-ahead among them (RE2,
# Go, Rust): characters, classes of ASCII characters, greedy repetition, a beginning and an end.
PATTERN = re.compile(
    r"\^(?:(?:\[[A-Za-z0-9._~-]+\]|[A-Za-z0-9/:-]|\\\.)(?:\*|\{[0-9]+(?:,[0-9]+)?\})?)+\$"
)
# But `$` also stands before a final newline in some, and before other line ends in others. So what
# a pattern's characters are is said again beside it, as what the string must not hold.
FOREIGN = re.compile(r"\[\^[A-Za-z0-9._~:/-]+\]")


def subschemas(
    schema: dict[str, Any], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every schema inside a file with its place, the file itself included.

    Only what is a schema: a property that is called `required` is none.
    """
    yield place, schema
    for keyword, member in schema.items():
        inner: dict[str, Any] = {}
        if keyword in {"properties", "$defs"}:
            inner = {f"{keyword}/{name}": part for name, part in member.items()}
        elif keyword in {"allOf", "oneOf"}:
            inner = {f"{keyword}/{index}": part for index, part in enumerate(member)}
        elif keyword in {"items", "if", "then", "not"}:
            inner = {keyword: member}
        for name, part in inner.items():
            yield from subschemas(cast("dict[str, Any]", part), (*place, *name.split("/", 1)))


def narrows(place: tuple[str, ...]) -> bool:
    """Tell whether a place only narrows what another schema beside it describes and closes."""
    return not {"oneOf", "if", "not"}.isdisjoint(place)


def test_one_schema_a_payload_and_back() -> None:
    """The seven events and the files under events/ are the same set, by tag."""
    files = {
        path.name.removesuffix(SCHEMA_SUFFIX) for path in (SCHEMA_DIRECTORY / "events").iterdir()
    }
    assert files == {event_class.tag for event_class in EVENT_CLASSES}


def test_the_other_documents_have_their_schemas() -> None:
    """Everything that goes over the wire has a schema file."""
    assert set(NAMES) >= {
        "session-event",
        "session-response",
        "transcript-entry",
        "invocation-request",
        "invocation-result",
        "invocation-state",
        "problem",
        "health-response",
        "runtime-response",
    }


def test_the_envelope_tells_all_events_apart() -> None:
    """The envelope's schema knows each tag and refers each to its own file."""
    envelope = schemas()["session-event"]
    branches = {
        branch["properties"]["type"]["const"]: branch["properties"]["payload"]["$ref"]
        for branch in envelope["oneOf"]
    }
    tags = [event_class.tag for event_class in EVENT_CLASSES]
    assert branches == {tag: f"events/{tag}{SCHEMA_SUFFIX}" for tag in tags}
    assert envelope["properties"]["type"]["enum"] == tags


@pytest.mark.parametrize("name", NAMES)
def test_file(name: str) -> None:
    """A file is a valid Draft 2020-12 schema, named by its place, titled and described."""
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"{SCHEMA_BASE}{name}{SCHEMA_SUFFIX}"
    assert schema["title"]
    for place, part in subschemas(schema):
        assert not {"$id", "$schema"} & part.keys() or not place
        told = (
            part.get("description")
            or "$ref" in part
            or narrows(place)
            or place[-2:-1] == ("allOf",)
        )
        assert told or place[-1:] == ("then",), place


@pytest.mark.parametrize("name", NAMES)
def test_keywords(name: str) -> None:
    """A file uses no keyword outside the known few, and each with the type it speaks of."""
    for place, part in subschemas(schemas()[name]):
        assert part.keys() <= KEYWORDS, place
        kinds = part.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        assert len(set(kinds) - {"null"}) <= 1, f"{place}: a union other than with null"
        for keyword in part.keys() & ASSERTED_TYPE.keys():
            assert ASSERTED_TYPE[keyword] in kinds, f"{place}: {keyword} without its type"
        if "const" in part or "enum" in part:
            assert kinds, f"{place}: a constant without its type"
        for bound in ("minimum", "minLength", "minItems", "maxProperties"):
            assert 0 <= part.get(bound, 0) < LARGEST_BOUND


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_closed(name: str) -> None:
    """Every object names all its members; open are only the few places of free form."""
    for place, part in subschemas(schemas()[name]):
        if part.get("type") != "object" or narrows(place):
            continue
        refers = "$ref" in part or "allOf" in part or "oneOf" in part
        closed = part.get("additionalProperties") is False
        assert closed or (name, place[-1] if place else "") in OPEN or (refers and not place), place
        if closed:
            assert set(part.get("required", [])) <= part["properties"].keys(), place
        for branch in (*part.get("allOf", []), *part.get("oneOf", [])) if not closed else ():
            target = branch.get("then", branch).get("$ref", "").removeprefix("#/$defs/")
            assert target in schemas()[name]["$defs"], f"{place}: leads to no closed object"


@pytest.mark.parametrize("name", NAMES)
def test_patterns(name: str) -> None:
    """A pattern holds from the first character to the last, in any engine's dialect."""
    for place, part in subschemas(schemas()[name]):
        if "pattern" not in part:
            continue
        if place[-1:] == ("not",):
            assert FOREIGN.fullmatch(part["pattern"]), place
        else:
            assert PATTERN.fullmatch(part["pattern"]), place
            assert part["not"].keys() == {"type", "pattern"}, place


@pytest.mark.parametrize("name", NAMES)
def test_patterns_are_read_by_engines_without_backtracking(name: str) -> None:
    """A file compiles, too, where regular expressions run in linear time and know no look-ahead."""
    registry = FastRegistry([(str(schema["$id"]), schema) for schema in schemas().values()])
    FastValidator(schemas()[name], registry=registry, pattern_options=RegexOptions())


@pytest.mark.parametrize("name", NAMES)
def test_references_resolve_within_the_folder(name: str) -> None:
    """Every reference is relative and leads to a file of this folder, and a schema within it."""
    for place, part in subschemas(schemas()[name]):
        if "$ref" not in part:
            continue
        path, _, fragment = part["$ref"].partition("#")
        assert ":" not in path, place
        assert not path.startswith("/"), place
        file = SCHEMA_DIRECTORY / f"{name}{SCHEMA_SUFFIX}"
        target = (file.parent / path).resolve() if path else file
        assert target.is_relative_to(SCHEMA_DIRECTORY), place
        found = schemas()[
            target.relative_to(SCHEMA_DIRECTORY).as_posix().removesuffix(SCHEMA_SUFFIX)
        ]
        for token in fragment.split("/")[1:]:
            found = found[token]
        assert found, place


def test_the_walk_sees_every_reference() -> None:
    """The walk that the other tests rely on misses no schema: it finds all that the text holds."""
    for name in NAMES:
        text = (SCHEMA_DIRECTORY / f"{name}{SCHEMA_SUFFIX}").read_text(encoding="utf-8")
        parts = [part for _, part in subschemas(schemas()[name])]
        assert sum("$ref" in part for part in parts) == text.count('"$ref":')
        assert sum("pattern" in part for part in parts) == text.count('"pattern":')


def test_the_readme_lists_every_file() -> None:
    """The page beside the files names each file that stands at the top."""
    page = (SCHEMA_DIRECTORY / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        if "/" not in name:
            assert f"`{name}{SCHEMA_SUFFIX}`" in page


@pytest.mark.parametrize(
    ("name", "member"), [("model_chunk_recorded", "chunk"), ("tool_execution_completed", "result")]
)
def test_what_is_held_as_text_may_be_anything(name: str, member: str) -> None:
    """The two members that are kept as JSON text are under no assertion: encoding counts on it."""
    schema = schemas()[f"events/{name}"]
    assert schema["properties"][member].keys() <= ANNOTATIONS
    for _, part in subschemas(schema):
        assert part.get("properties", {}).get(member, {}).keys() <= ANNOTATIONS
