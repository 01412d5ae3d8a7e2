"""The schema files: sound, closed, portable, one a payload; and the two engines that read them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable
from strategies import events, json_values

from actors.codec import payload_value
from actors.events import EVENT_CLASSES
from actors.validation import (
    FAULT_LENGTH,
    SCHEMA_BASE,
    SCHEMA_DIRECTORY,
    SCHEMA_SUFFIX,
    document_fault,
    payload_fault,
    schemas,
    validators,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.events import Event

NAMES = sorted(schemas())
# Keywords on which conforming validators are known to differ, or that mean nothing to some.
FORBIDDEN = {"format", "multipleOf", "$anchor", "$dynamicRef", "unevaluatedProperties", "default"}
# The one way to write an end that all engines read alike; and, in what is left once character
# classes are taken out too, the classes, escapes, flags and ends that they read differently.
END = r"$(?![\s\S])"
CHARACTER_CLASS = re.compile(r"\[[^\]]*\]")
DIALECT = re.compile(r"\\[dDwWsSbBpP]|\(\?|(?<!\\)\.|\$")


def subschemas(schema: object) -> Iterator[dict[str, Any]]:
    """Yield every object inside a schema file, itself included."""
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        yield mapping
        for member in mapping.values():
            yield from subschemas(member)
    elif isinstance(schema, list):
        for member in cast("list[object]", schema):
            yield from subschemas(member)


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
    """A file is a valid Draft 2020-12 schema, named, described, closed and portable."""
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"{SCHEMA_BASE}{name}{SCHEMA_SUFFIX}"
    assert schema["title"]
    assert schema["description"]
    for part in subschemas(schema):
        assert not FORBIDDEN & part.keys()
        if part.get("type") == "object" and "properties" in part and "required" in part:
            is_branch = "description" not in part  # of a oneOf, beside the closed object itself
            assert is_branch or part.get("additionalProperties") is False
        if "pattern" in part and isinstance(part["pattern"], str):
            assert part["pattern"].startswith("^")
            assert part["pattern"].endswith(END)
            rest = CHARACTER_CLASS.sub("", part["pattern"].removesuffix(END))
            assert not DIALECT.search(rest), part["pattern"]
            assert "\\" not in "".join(CHARACTER_CLASS.findall(part["pattern"].removesuffix(END)))


@pytest.mark.parametrize("name", NAMES)
def test_references_resolve_within_the_folder(name: str) -> None:
    """Every reference is relative and leads to a file here: nothing is ever fetched."""
    for part in subschemas(schemas()[name]):
        if "$ref" in part:
            assert "://" not in part["$ref"]
    validators(name)  # compiles, and with it resolves


def test_an_unknown_reference_is_not_fetched() -> None:
    """The registry is closed: a reference that leads outside is an error."""
    resolver = validators("session-event").reference._resolver  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue] # no public way to ask it
    with pytest.raises(Unresolvable):
        resolver.lookup("https://sessiond.dev/schemas/nothing.schema.json")  # pyright: ignore[reportUnknownMemberType]


# --- the engines agree ----------------------------------------------------------------------------


def places(value: object, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    yield prefix
    if isinstance(value, dict):
        for key, member in cast("dict[str, object]", value).items():
            yield from places(member, (*prefix, key))
    elif isinstance(value, list):
        for index, member in enumerate(cast("list[object]", value)):
            yield from places(member, (*prefix, index))


def look(value: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for token in path:
        value = value[token]
    return value


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Any]:
    """Return a tag and a payload of it with one thing changed somewhere inside."""
    event = draw(events)
    payload = json.loads(json.dumps(payload_value(event)))
    path = draw(st.sampled_from([path for path in places(payload) if path]))
    parent, token = look(payload, path[:-1]), path[-1]
    change = draw(st.sampled_from(["value", "drop", "add", "newline", "float", "wrap"]))
    old = parent[token]
    if change == "value":
        parent[token] = draw(json_values)
    elif change == "drop":
        del parent[token]
    elif change == "add" and isinstance(parent, dict):
        parent[draw(st.text(max_size=5))] = draw(json_values)
    elif change == "newline" and isinstance(old, str):
        parent[token] = old + draw(st.sampled_from(["\n", " ", "\r", "\u2028", "0", "\x00"]))
    elif change == "float" and isinstance(old, int):
        parent[token] = draw(st.sampled_from([0.0, -0.0, 0.5, 1e30, float(10**15), -1, True]))
    else:
        parent[token] = [old]
    tag = draw(st.sampled_from([event.tag, event.tag, event.tag, *(c.tag for c in EVENT_CLASSES)]))
    return tag, payload


@given(events)
def test_engines_agree_on_valid_payloads(event: Event) -> None:
    """Both engines accept what an event's own payload is."""
    pair, payload = validators(f"events/{event.tag}"), payload_value(event)
    assert pair.fast.is_valid(payload)
    assert pair.reference.is_valid(payload)  # pyright: ignore[reportArgumentType, reportUnknownMemberType] # the stubs' JSON


@settings(max_examples=400)
@given(mutated())
def test_engines_agree_on_changed_payloads(case: tuple[str, Any]) -> None:
    """The fast engine's word is the reference's, whatever was changed in a payload."""
    tag, payload = case
    pair = validators(f"events/{tag}")
    accepted = pair.reference.is_valid(payload)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON
    assert pair.fast.is_valid(payload) == accepted
    assert (payload_fault(tag, payload) is None) == accepted


@given(st.sampled_from(NAMES), json_values)
def test_engines_agree_on_anything(name: str, value: Any) -> None:
    """Values that are no payload at all are judged alike, by every file."""
    pair = validators(name)
    assert pair.fast.is_valid(value) == pair.reference.is_valid(value)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON


@pytest.mark.parametrize("value", [10**4299, -(10**4299), 2**63, 2**64, 1e308, -1e308, 3.0, -0.0])
def test_engines_agree_on_extreme_numbers(value: float) -> None:
    """Numbers beyond any machine word are judged alike and break neither engine."""
    payload: Any = {
        "step_id": "turn-1/step-1",
        "message": {"role": "assistant", "content": "", "tool_calls": []},
        "finish_reason": "stop",
        "usage": {"input_tokens": value, "output_tokens": 0},
    }
    pair = validators("events/assistant_message_committed")
    assert pair.fast.is_valid(payload) == pair.reference.is_valid(payload) == (value >= 0)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON


def test_a_fault_names_the_place_and_is_cut() -> None:
    """A refusal says where and what, in a line of bounded length."""
    fault = document_fault("invocation-request", {"input": ["x" * 10_000]})
    assert fault is not None
    assert fault.startswith("/input: ")
    assert len(fault) == FAULT_LENGTH


def test_an_unknown_tag_is_a_fault() -> None:
    """There is no schema for a tag that is not one of the seven."""
    assert payload_fault("nonsense", {}) == "unknown event type 'nonsense'"
