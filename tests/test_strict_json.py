"""Strict JSON: what is written comes back equal, or is refused with its place named."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from actors.errors import NotStrictJson
from actors.strict_json import MAX_BYTES, MAX_DEPTH, MAX_INTEGER_DIGITS, dumps, loads, parse


def shape(value: Any) -> Any:
    """Return the value with what ``==`` overlooks made visible: types, -0.0, key order."""
    if isinstance(value, dict):
        return [(key, shape(member)) for key, member in cast("dict[str, Any]", value).items()]
    if isinstance(value, list):
        return [shape(member) for member in cast("list[Any]", value)]
    if isinstance(value, float):
        return ("float", value, math.copysign(1, value))
    return (type(value).__name__, value)


def nested(depth: int) -> object:
    """Return lists inside one another, ``depth`` of them."""
    value: object = []
    for _ in range(depth - 1):
        value = [value]
    return value


@given(json_values)
def test_round_trip(value: Any) -> None:
    """Every JSON value comes back equal, to the type, the sign of zero and the order of keys."""
    assert shape(loads(dumps(value))) == shape(value)


@given(json_values, st.sampled_from([None, 1]), st.booleans(), st.sampled_from([",", ", "]))
def test_a_text_is_known_for_compact(
    value: Any, indent: int | None, ascii_only: bool, separator: str
) -> None:
    """However a text is written it gives the same value, and is told for compact if it is that."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, separators=(separator, ":"))
    parsed, is_compact = parse(text)
    assert shape(parsed) == shape(value)
    assert not is_compact or dumps(parsed) == text
    few_levels = text.count("[") + text.count("{") <= MAX_DEPTH
    assert is_compact or not few_levels or dumps(parsed) != text


@pytest.mark.parametrize(
    ("text", "is_compact"),
    [
        ("[1e16]", False),  # 1e+16 to Python
        ("[1e+16]", True),
        ("[1e-7]", False),  # 1e-07
        ("[1e-07]", True),
        ("[0.5]", True),
        ("[-0]", False),  # reads as 0
        ("[-0.0]", True),
        ("[18446744073709551615]", True),  # 64 bits
        ("[18446744073709551616]", True),
        ("[-9223372036854775809]", True),
        ('["\\u007f"]', False),
        ('["\x7f\u2028"]', True),
        ('["\\u001f"]', True),
        ('["\\u001F"]', False),
        ('["\\/"]', False),
    ],
)
def test_numbers_and_strings_have_one_compact_spelling(text: str, is_compact: bool) -> None:
    """Python's: of those of other writers of compact JSON, none is taken for it."""
    value, found = parse(text)
    assert found == is_compact
    assert (dumps(value) == text) == is_compact


@given(json_values)
def test_text_is_what_python_writes(value: Any) -> None:
    """The text is Python's own compact form, so others can reproduce it."""
    assert dumps(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    "value",
    [
        "\x00",
        "",
        {"": ""},
        "\U0001f600",
        10 ** (MAX_INTEGER_DIGITS - 1),
        -(10**MAX_INTEGER_DIGITS) + 1,
        -0.0,
        {"z": 1, "a": 2},
        nested(MAX_DEPTH),
    ],
)
def test_corners_are_accepted(value: Any) -> None:
    """What is odd but JSON is kept intact."""
    assert shape(loads(dumps(value))) == shape(value)


class Text(str):
    """A string that is not exactly a string."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, ""),
        ({"a": [1, math.inf]}, "/a/1"),
        ({"a": {1: 2}}, "/a"),
        ({"a/b~c": b"x"}, "/a~1b~0c"),
        ([(1, 2)], "/0"),
        ({"a": "\ud800"}, "/a"),
        ({"\udfff": 1}, ""),
        ([10**MAX_INTEGER_DIGITS], "/0"),
        ([Text("x")], "/0"),
        ({"a": object()}, "/a"),
        (nested(MAX_DEPTH + 1), "/0" * MAX_DEPTH),
        ("x" * (MAX_BYTES - 1), ""),
    ],
)
def test_values_are_refused(value: object, place: str) -> None:
    """What JSON has no exact form for is refused, and the place is named."""
    with pytest.raises(NotStrictJson) as refused:
        dumps(value)
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("NaN", ""),
        ('{"a":[0,-Infinity]}', "/a/1"),
        ('{"a":1e400}', "/a"),
        ('{"a":{"b":1,"b":2}}', "/a/b"),
        ('["\\ud800"]', "/0"),
        ('{"a":"\\udC00x"}', "/a"),
        ("[" + "1" * (MAX_INTEGER_DIGITS + 1) + "]", "/0"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "/0" * MAX_DEPTH),
        ("[" * 100_000 + "]" * 100_000, ""),
        ("\ud800", ""),
        ('"' + "x" * (MAX_BYTES - 1) + '"', ""),
        ("", ""),
        ("{} {}", ""),
        ("[1,]", ""),
        ("'a'", ""),
        ("\ufeff{}", ""),
        ('"\n"', ""),
    ],
)
def test_texts_are_refused(text: str, place: str) -> None:
    """What is not strict JSON text is refused, and the place is named where there is one."""
    with pytest.raises(NotStrictJson) as refused:
        loads(text)
    assert refused.value.place == place


def test_the_longest_text_is_accepted() -> None:
    """A text of exactly the limit is stored."""
    value = "x" * (MAX_BYTES - 2)
    assert loads(dumps(value)) == value


def test_a_surrogate_pair_is_one_character() -> None:
    """An escaped pair is an astral character, not two lone halves."""
    assert loads('"\\ud83d\\ude00"') == "\U0001f600"
