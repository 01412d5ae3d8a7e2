"""Validation: two engines that agree, a refusal that tells, and no value that breaks either."""

from __future__ import annotations

import re
import socket
from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable
from strategies import events, json_values

from actors import strict_json
from actors.codec import payload_value
from actors.events import EVENT_CLASSES
from actors.validation import (
    FAULT_LENGTH,
    SCHEMA_BASE,
    compile_schema,
    document_fault,
    pair_fault,
    payload_fault,
    schemas,
    validators,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.events import Event

NAMES = sorted(schemas())
TAGS = [event_class.tag for event_class in EVENT_CLASSES]
STEP_ID = "turn-1/step-1"
NUMBERS = [0.0, -0.0, 0.5, 1e30, 1e308, 5e-324, float(2**53), -1, -1.0, True, 2**64, 10**400]
ENDINGS = ["\n", "\r", "\r\n", " ", "\u2028", "\u0085", "\x00", "0", "\U0001d7d9", "\u0661"]


def reference_accepts(name: str, document: Any) -> bool:
    """Return the reference validator's verdict."""
    return validators(name).reference.is_valid(document)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON


def assert_agreement(name: str, document: Any) -> None:
    """Hold the fast engine, the reference and the fault against each other."""
    accepted = reference_accepts(name, document)
    assert validators(name).fast.is_valid(document) == accepted
    assert (document_fault(name, document) is None) == accepted


def completion(**members: Any) -> dict[str, Any]:
    """Return a tool_execution_completed payload with these members beside the usual."""
    return {"step_id": STEP_ID, "call_id": "c", **members}


def response(usage: Any) -> dict[str, Any]:
    """Return an assistant_message_committed payload whose input_tokens are these."""
    return {
        "step_id": STEP_ID,
        "message": {"role": "assistant", "content": "", "tool_calls": []},
        "finish_reason": "stop",
        "usage": {"input_tokens": usage, "output_tokens": 0},
    }


def request(messages: Any) -> dict[str, Any]:
    """Return a model_request_recorded payload with these messages."""
    return {
        "turn_id": "turn-1",
        "step_id": STEP_ID,
        "route": {"provider": "p", "model": "m"},
        "system_prompt": "",
        "tools": [],
        "messages": messages,
    }


def nested(depth: int) -> Any:
    """Return arrays inside one another, that many."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


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


def replacement(draw: st.DrawFn, old: Any, payload: dict[str, Any]) -> Any:
    """Return something to stand where ``old`` stood, often close to it."""
    choices = [
        json_values,
        st.sampled_from([[old], {"value": old}, nested(100)]),
        # Itself would tie a knot.
        st.sampled_from(list(places(payload))).map(lambda path: deepcopy(look(payload, path))),
    ]
    if isinstance(old, str):
        choices.append(st.sampled_from(ENDINGS).map(lambda ending: old + ending))
        choices.append(st.integers(0, len(old)).map(lambda length: old[:length]))
    elif isinstance(old, int):
        choices.append(st.sampled_from(NUMBERS) | st.floats(-2, 2))
    return draw(st.one_of(*choices))


def mutate(draw: st.DrawFn, payload: dict[str, Any]) -> None:
    """Change one thing somewhere inside a payload."""
    path = draw(st.sampled_from([path for path in places(payload) if path]))
    parent, token = look(payload, path[:-1]), path[-1]
    structural = ["drop", "add", "rename"] if isinstance(parent, dict) else ["drop"]
    change = draw(st.sampled_from([*structural, "replace", "replace", "replace"]))
    if change == "drop":
        del parent[token]
    elif change == "add":
        names = st.sampled_from(["result", "error", "usage", "inline", "role"]) | st.text(
            max_size=3
        )
        parent[draw(names)] = draw(json_values)
    elif change == "rename":
        parent[token + draw(st.sampled_from(ENDINGS))] = parent[token]
        del parent[token]
    else:
        parent[token] = replacement(draw, parent[token], payload)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a tag and a payload of it, or of another, with up to three changes inside."""
    event = draw(events)
    payload: dict[str, Any] = deepcopy(payload_value(event))
    for _ in range(draw(st.integers(1, 3))):
        if payload:
            mutate(draw, payload)
    return draw(st.just(event.tag) | st.sampled_from(TAGS)), payload


@given(events)
def test_engines_agree_on_valid_payloads(event: Event) -> None:
    """Both engines accept what an event's own payload is, alone and in its envelope."""
    payload: Any = payload_value(event)
    envelope = {
        "session_id": "s",
        "sequence": 1,
        "recorded_at": "2026-12-01T09:30:00.123456Z",
        "type": event.tag,
        "payload": payload,
    }
    for name, document in ((f"events/{event.tag}", payload), ("session-event", envelope)):
        assert validators(name).fast.is_valid(document)
        assert reference_accepts(name, document)


@settings(max_examples=400)
@given(mutated())
def test_engines_agree_on_changed_payloads(case: tuple[str, dict[str, Any]]) -> None:
    """The fast engine's word is the reference's, whatever was changed in a payload."""
    tag, payload = case
    assert_agreement(f"events/{tag}", payload)


@given(mutated())
def test_engines_agree_on_changed_envelopes(case: tuple[str, dict[str, Any]]) -> None:
    """In an envelope a payload is judged as it is alone: the tag decides."""
    tag, payload = case
    envelope = {
        "session_id": "s",
        "sequence": 1,
        "recorded_at": "2026-12-01T09:30:00.123456Z",
        "type": tag,
        "payload": payload,
    }
    assert_agreement("session-event", envelope)
    assert reference_accepts("session-event", envelope) == (payload_fault(tag, payload) is None)


@given(st.sampled_from(NAMES), json_values)
def test_engines_agree_on_anything(name: str, value: Any) -> None:
    """Values that are no payload at all are judged alike, by every file."""
    assert_agreement(name, value)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("whole", [STEP_ID, "turn-1", "a" * 64, "2026-12-01T09:30:00.123456Z"])
def test_engines_agree_on_endings(whole: str, ending: str) -> None:
    """What follows the last character of an id is seen by both engines, a newline too."""
    for text in (whole, whole + ending):
        for name in ("events/step_failed", "events/user_input_accepted"):
            assert_agreement(name, {"step_id": text, "code": "c", "message": ""})
        turn = {
            "turn_id": text,
            "invocation_id": text,
            "messages": [{"role": "user", "content": ""}],
        }
        assert_agreement("events/user_input_accepted", turn)
        assert_agreement("events/model_request_recorded", request({"through": 1, "sha256": text}))
    fault = payload_fault("step_failed", {"step_id": STEP_ID + ending, "code": "c", "message": ""})
    assert (fault is None) == (ending == "0")


# --- no value breaks them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [10**4299, -(10**4299), 2**63, 2**64, 1e308, -1e308, 3.0, 3.5, -0.0, 5e-324, True]
)
def test_engines_agree_on_extreme_numbers(value: float) -> None:
    """Numbers beyond any machine word are judged alike and break neither engine."""
    assert_agreement("events/assistant_message_committed", response(value))
    is_count = value is not True and value >= 0 and value % 1 == 0
    assert (payload_fault("assistant_message_committed", response(value)) is None) == is_count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [
        nested(strict_json.MAX_DEPTH),
        {"": nested(strict_json.MAX_DEPTH - 1)},
        10**strict_json.MAX_INTEGER_DIGITS - 1,
        {"x\n" * 300: None, "\x00": "\U0010ffff"},
        "\u2028\n" * 300,
    ],
    ids=["deep array", "deep member", "long integer", "odd keys", "odd text"],
)
def test_extreme_values_get_a_short_fault(name: str, value: Any) -> None:
    """Whatever strict JSON allows is judged without raising, in one printable line."""
    strict_json.dumps(value)
    assert_agreement(name, value)
    fault = document_fault(name, value)
    if "type" in schemas()[name]:
        assert fault is not None
        assert len(fault) <= FAULT_LENGTH
        assert fault.isprintable()


def test_free_form_members_may_be_as_deep_as_json() -> None:
    """A chunk is accepted at the depth and with the integers that strict JSON allows."""
    chunk = nested(strict_json.MAX_DEPTH - 2)
    for value in (chunk, {"n": 10**4299}, [-0.0, 1e308]):
        payload: Any = {"step_id": STEP_ID, "chunk": value}
        strict_json.dumps(payload)
        assert_agreement("events/model_chunk_recorded", payload)
        assert payload_fault("model_chunk_recorded", payload) is None


def test_what_the_fast_engine_gives_up_on_is_still_accepted() -> None:
    """An id too long for the fast engine's regular expressions is judged by the reference."""
    payload: Any = {"step_id": f"turn-{'1' * 2_000_000}/step-1", "code": "c", "message": ""}
    assert payload_fault("step_failed", payload) is None
    payload["step_id"] += "\n"
    assert payload_fault("step_failed", payload) is not None


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        ("user_input_accepted", {"turn_id": "turn-1", "invocation_id": "a", "messages": []}),
        ("model_request_recorded", request({"inline": []})),
        ("model_request_recorded", request({"inline": [{"role": "assistant", "content": ""}]})),
        ("assistant_message_committed", response(0)),
    ],
    ids=["input", "inline", "calls inline", "calls"],
)
def test_millions_of_errors_are_not_all_worded(tag: str, payload: dict[str, Any]) -> None:
    """A refusal costs what its first errors cost: an array of wrong members is no hang."""
    payload = deepcopy(payload)
    wrong = [1] * 4_000_000  # eight megabytes of JSON; wording each would take minutes
    if tag == "user_input_accepted":
        payload["messages"] = wrong
    elif tag == "assistant_message_committed":
        payload["message"]["tool_calls"] = wrong
    elif payload["messages"]["inline"]:
        payload["messages"]["inline"][0]["tool_calls"] = wrong
    else:
        payload["messages"]["inline"] = wrong
    fault = payload_fault(tag, payload)
    assert fault is not None
    assert re.match(r"/message(s|/).*: 1 is not of type 'object'$", fault)


# --- what a fault says ----------------------------------------------------------------------------


def test_a_fault_names_the_place_and_is_cut() -> None:
    """A refusal says where and what, in a line of bounded length that keeps the complaint."""
    fault = document_fault("invocation-request", {"input": ["x" * 10_000]})
    assert fault is not None
    assert fault.startswith("/input: ['xxx")
    assert fault.endswith("is not of type 'string'")
    assert len(fault) == FAULT_LENGTH


@pytest.mark.parametrize(
    ("tag", "payload", "told"),
    [
        (
            "tool_execution_completed",
            completion(),
            "'result' is a required property; or 'error' is a required property",
        ),
        (
            "tool_execution_completed",
            completion(error={"code": "", "message": ""}),
            "/error/code: '' should be non-empty",
        ),
        (
            "model_request_recorded",
            request({}),
            "/messages: 'through' is a required property; or 'inline' is a required property",
        ),
        (
            "model_request_recorded",
            request({"through": 0, "sha256": "a" * 64}),
            "/messages/through: 0 is less than the minimum of 1",
        ),
        (
            "model_request_recorded",
            request({"inline": [{"role": "system", "content": ""}]}),
            "/messages/inline/0/role: 'system' is not one of ['user', 'assistant', 'tool']",
        ),
        (
            "model_request_recorded",
            request({"inline": [{"role": "assistant", "content": ""}]}),
            "/messages/inline/0: 'tool_calls' is a required property",
        ),
    ],
)
def test_a_fault_tells_what_is_wrong(tag: str, payload: Any, told: str) -> None:
    """Where there are alternatives, a refusal names what is missing, not that none fits."""
    assert payload_fault(tag, payload) == told


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        ("tool_execution_completed", completion(result=None, error={"code": "c", "message": ""})),
        ("model_request_recorded", request({"through": 1, "sha256": "a" * 64, "inline": []})),
        ("model_request_recorded", request({"through": 1, "inline": []})),
        ("model_request_recorded", request({"through": 1})),
        ("model_request_recorded", request({"sha256": "a" * 64})),
        ("user_input_accepted", {"turn_id": "turn-1", "invocation_id": "a", "messages": []}),
        (
            "user_input_accepted",
            {
                "turn_id": "turn-1",
                "invocation_id": "a",
                "messages": [{"role": "tool", "content": "", "tool_call_id": "c"}],
            },
        ),
    ],
)
def test_exactly_one_alternative(tag: str, payload: Any) -> None:
    """Two alternatives at once, or half of one, are refused by both engines."""
    assert_agreement(f"events/{tag}", payload)
    assert payload_fault(tag, payload) is not None


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}])
def test_a_result_may_be_anything(result: Any) -> None:
    """A result that is null or empty is a result."""
    assert payload_fault("tool_execution_completed", completion(result=result)) is None


@pytest.mark.parametrize(
    "tag", ["nonsense", "", "../problem", "step_failed.schema.json", "x" * 500]
)
def test_an_unknown_tag_is_a_fault(tag: str) -> None:
    """There is no schema for a tag that is not one of the seven, and none outside events/."""
    fault = payload_fault(tag, {})
    assert fault is not None
    assert fault.startswith("unknown event type ")
    assert len(fault) <= FAULT_LENGTH


def test_an_unknown_document_is_a_mistake_of_the_caller() -> None:
    """A name without a file is no verdict about a document."""
    with pytest.raises(KeyError):
        document_fault("nonsense", {})


def test_an_unknown_reference_is_not_fetched() -> None:
    """The registry is closed: a reference that leads outside is an error."""
    resolver = validators("session-event").reference._resolver  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue] # no public way to ask it
    with pytest.raises(Unresolvable):
        resolver.lookup(f"{SCHEMA_BASE}nothing.schema.json")  # pyright: ignore[reportUnknownMemberType]


# --- a schema from elsewhere ----------------------------------------------------------------------


def leaf_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of scalars, as tools have them."""
    return st.one_of(
        st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]).map(
            lambda kind: {"type": kind}
        ),
        st.lists(json_values, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        json_values.map(lambda value: {"const": value}),
        st.integers(-3, 3).map(lambda n: {"type": "integer", "minimum": n}),
        st.floats(-3, 3).map(lambda n: {"type": "number", "exclusiveMaximum": n}),
        st.integers(0, 3).map(lambda n: {"type": "string", "minLength": n}),
        st.integers(0, 3).map(lambda n: {"type": "string", "maxLength": n}),
        st.just({"type": "string", "pattern": "^[a-c]*$(?![\\s\\S])"}),
    )


@st.composite
def objects_of(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema of objects."""
    keys = st.sampled_from("abc")
    schema: dict[str, Any] = {
        "type": "object",
        "properties": draw(st.dictionaries(keys, inner, max_size=3)),
        "required": sorted(draw(st.sets(keys, max_size=2))),
    }
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    return schema


def grown_schemas(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas made of others."""
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        objects_of(inner),
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
        several.map(lambda parts: {"anyOf": parts}),
        several.map(lambda parts: {"oneOf": parts}),
        inner.map(lambda part: {"$defs": {"part": part}, "not": {"$ref": "#/$defs/part"}}),
        inner.map(lambda part: {"$defs": {"part": part}, "items": {"$ref": "#/$defs/part"}}),
    )


tool_schemas = st.recursive(leaf_schemas(), grown_schemas, max_leaves=6)
tool_arguments = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 4) | st.floats(-4, 4) | st.text("abcd", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(tool_schemas, st.lists(tool_arguments | json_values, min_size=1, max_size=5))
def test_a_compiled_schema_judges_as_the_reference_does(schema: Any, values: list[Any]) -> None:
    """In the vocabulary of tools a value has a fault exactly if the reference refuses it."""
    try:
        pair = compile_schema(schema)
    except ValueError:
        # References are drawn without a place of their own, so nested ones may lead nowhere.
        assert "$ref" in strict_json.dumps(schema)
        return
    for value in values:
        accepts = pair.reference.is_valid(value)  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON
        fault = pair_fault(pair, value)
        assert (fault is None) == accepts
        if fault is not None:
            assert len(fault) <= FAULT_LENGTH
            assert fault.isprintable()


schema_like = st.recursive(
    json_values,
    lambda inner: st.dictionaries(
        st.sampled_from(
            [
                *("type", "properties", "items", "required", "enum", "anyOf", "not", "$defs"),
                *("pattern", "minimum", "$ref", "$id", "$schema", "$anchor", "$dynamicRef", "if"),
                *("multipleOf", "patternProperties", "prefixItems", "definitions", "const"),
            ]
        ),
        inner
        | st.sampled_from(["string", "#", "#/$defs", "#a", "x", "(", "http://a.test/b", ["a"]]),
        max_size=4,
    ),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@settings(max_examples=400)
@given(schema_like, json_values)
def test_any_schema_is_compiled_or_refused(schema: dict[str, Any], value: Any) -> None:
    """Whatever a schema holds: it is refused as a ValueError, or judges every value."""
    try:
        pair = compile_schema(schema)
    except ValueError:
        return
    pair_fault(pair, value)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "nothing"}, "/type: 'nothing' is not one of"),
        ({"properties": {"a\n/": {"minLength": -1}}}, "/properties/a\\n~1/minLength: -1 is less"),
        ({"pattern": "("}, "/pattern: '(' is not a 'regex'"),
        ({"pattern": "\\p{L}"}, "/pattern: "),
        ({"$ref": "#/$defs/gone"}, "'#/$defs/gone' leads to no place within the schema"),
        ({"$defs": {"a": {"$ref": "#/gone"}}}, "'#/gone' leads to no place within the schema"),
        ({"$ref": "https://example.com/x"}, "'https://example.com/x' leads to no place"),
        ({"$ref": "file:///etc/passwd"}, "'file:///etc/passwd' leads to no place"),
        ({"$ref": "other.json"}, "'other.json' leads to no place"),
        ({"$ref": f"{SCHEMA_BASE}problem.schema.json"}, "leads to no place"),
        ({"$dynamicRef": "#gone"}, "'#gone' leads to no place"),
        ({"x": 5, "$ref": "#/x"}, "5 is not of type"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "is not https://json-schema.org"),
        ({"$ref": "#"}, "applies itself to the same value for ever"),
        ({"items": {"not": {"$ref": "#/items"}}}, "applies itself to the same value for ever"),
        (
            {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
            "applies itself to the same value for ever",
        ),
    ],
)
def test_an_unsound_schema_is_refused(schema: dict[str, Any], told: str) -> None:
    """What is no schema of the draft, or leads out of itself, is refused and says why."""
    with pytest.raises(ValueError, match=re.escape(told)):
        compile_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema#"},
        {"const": {"$ref": "https://example.com/x"}, "examples": [{"$ref": "#/gone"}]},
        {"properties": {"$ref": {"type": "string"}}},
        {"definitions": {"a": {"type": "object"}}, "$ref": "#/definitions/a"},
        {"$id": "https://example.com/me", "$defs": {"a": {"$anchor": "b"}}, "$ref": "#b"},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
    ],
)
def test_a_sound_schema_is_compiled(schema: dict[str, Any]) -> None:
    """References that lead somewhere within, and what only looks like one, are fine."""
    assert pair_fault(compile_schema(schema), {}) in {None} | {
        f"{schema.get('const')!r} was expected"
    }


def test_compiling_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that leads outside is refused without asking anyone."""

    def refuse(*_: object) -> None:
        pytest.fail("a connection was wanted")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for reference in ("http://127.0.0.1:1/x", "https://example.com/x"):
        with pytest.raises(ValueError, match="leads to no place"):
            compile_schema({"properties": {"a": {"$ref": reference}}})


def test_a_fault_in_foreign_keys_is_one_escaped_line() -> None:
    """A key of the arguments is part of the place: escaped, on one line, and cut."""
    pair = compile_schema({"additionalProperties": {"type": "integer"}})
    fault = pair_fault(pair, {"a/~\n\u202e": "x"})
    assert fault == "/a~1~0\\n\\u202e: 'x' is not of type 'integer'"
    fault = pair_fault(pair, {"k" * 3_000_000: "x"})
    assert fault is not None
    assert len(fault) == FAULT_LENGTH
    assert fault.endswith("'x' is not of type 'integer'")


def test_what_the_reference_cannot_take_is_still_refused() -> None:
    """Where the fast engine refuses and the reference gives up, there is a fault all the same."""
    pair = compile_schema({"multipleOf": 10**400})
    assert pair_fault(pair, 1e308) == (
        "does not fit the schema; where, cannot be told (OverflowError)"
    )


def test_recursion_as_deep_as_json_is_judged() -> None:
    """A schema that goes down with the value judges one as deep as strict JSON allows."""
    pair = compile_schema({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
    deep = nested(strict_json.MAX_DEPTH)
    assert pair_fault(pair, deep) is not None  # it holds a number
    look(deep, (0,) * (strict_json.MAX_DEPTH - 1))[0] = None
    assert pair_fault(pair, deep) is None
