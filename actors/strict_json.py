"""Strict JSON: what is written comes back equal, or is refused with the place named.

Python's own ``json`` does the work and is kept honest here: NaN and infinities (also those
that a literal such as ``1e400`` overflows to), duplicate and non-string keys, lone surrogates,
non-JSON types, and anything too deep, too long or too many-digited is refused in both
directions. Texts are compact, in UTF-8-able Unicode, with the key order of the value.
"""

from __future__ import annotations

import json
import re
from json import encoder as json_encoder
from json.encoder import encode_basestring
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import orjson

from actors.errors import NotStrictJson

if TYPE_CHECKING:
    from collections.abc import Callable

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 128
"""Containers inside one another; the outermost is 1."""
MAX_BYTES = 16_777_216
"""UTF-8 bytes of one text."""
MAX_INTEGER_DIGITS = 4300
"""Python's default limit for converting integers (``sys.int_info``); more is refused."""

INTEGER_LIMIT = 10**MAX_INTEGER_DIGITS
"""The least integer that is refused for its digits."""

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _compact_encoder() -> Callable[[object], str]:
    """Return the function that writes compact text; what JSON cannot carry raises ValueError."""
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
        ).encode
    # What JSONEncoder.encode makes anew at each call; that is most of what a small value costs.
    encode_pieces = make(None, None, encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(encode_pieces(value, 0))


_encode = _compact_encoder()

quote: Callable[[str], str] = encode_basestring
"""The JSON string literal of a text, as :func:`dumps` writes it."""


def dumps(value: object) -> str:
    """Return the compact JSON text of ``value``, which :func:`loads` turns back into an equal one.

    Raises:
        NotStrictJson: the value holds something JSON has no exact form for; ``place`` says where.
    """
    _check(value, 1)
    text = _encode(value)
    check_size(text)
    return text


def dumps_trusted(value: JsonValue) -> str:
    """Return what :func:`dumps` does, for a value put together from parts that are strict JSON.

    Only what parts add up to is checked.

    Raises:
        NotStrictJson: the whole is too deep or too long.
    """
    text = _encode(value)
    check_size(text)
    check_depth(text)
    return text


def loads(text: str) -> JsonValue:
    """Return the value of a JSON text.

    Raises:
        NotStrictJson: the text is not strict JSON; ``place`` says where, if it could be parsed.
    """
    return parse(text)[0]


def parse(text: str) -> tuple[JsonValue, bool]:
    """Return the value of a JSON text, and whether :func:`dumps` would write it as this very text.

    False also where that is not known.

    Raises:
        NotStrictJson: as :func:`loads` does.
    """
    if len(text) > MAX_BYTES or not text.isascii():
        check_size(text)
    # What is written back to the very same text holds no duplicate key, no number out of range
    # and no escaped surrogate: each would have come back as something else. Both ways run in C,
    # which beats asking at every object and number.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        try:
            # orjson writes strings and integers of 64 bits as json does, in a sixth of the time.
            # It refuses longer ones, and is shown no floats, whose exponents it spells otherwise.
            value, end = _scan_without_floats(text, 0)
            if end == len(text) and orjson.dumps(value) == text.encode():
                return value, True
        except (ValueError, StopIteration, orjson.JSONEncodeError):
            pass
        try:
            value, end = _scan(text, 0)
            if end == len(text) and _encode(value) == text:
                return value, True
        except (ValueError, StopIteration):
            pass  # what is wrong, if anything is, the strict parser says
    return _strict_value(text), False


def parse_trusted(text: str) -> JsonValue:
    """Return the value of a text that :func:`dumps` wrote; not checked again."""
    return _scan(text, 0)[0]


def _strict_value(text: str) -> JsonValue:
    try:
        value = _decode(text)
    except _Unacceptable:
        raise _located(text) from None  # the located error says all that this one does, and where
    except RecursionError as error:
        raise NotStrictJson(f"nested deeper than {MAX_DEPTH}") from error
    except ValueError as error:
        raise NotStrictJson(f"not JSON: {error}") from error
    # The walk costs as much as the parse, and most texts plainly cannot need it: it looks for
    # depth, which takes brackets, and for lone surrogates, which in a text that passed
    # check_size only an escape can make.
    if text.count("{") + text.count("[") > MAX_DEPTH or _SURROGATE_ESCAPE.search(text):
        _check(value, 1)
    return value


def check_size(text: str) -> None:
    """Refuse a text that cannot be stored as UTF-8 or is longer than :data:`MAX_BYTES`.

    Raises:
        NotStrictJson: a lone surrogate, or too many bytes.
    """
    if text.isascii():
        size_bytes = len(text)
    else:
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotStrictJson("a lone surrogate is not Unicode text") from error
    if size_bytes > MAX_BYTES:
        raise NotStrictJson(f"{size_bytes} bytes of JSON text, more than {MAX_BYTES}")


def check_depth(text: str) -> None:
    """Refuse a text of strict JSON that is nested deeper than :data:`MAX_DEPTH`.

    Raises:
        NotStrictJson: it is.
    """
    if text.count("{") + text.count("[") > MAX_DEPTH:  # else it cannot be
        loads(text)


def is_text(value: object) -> bool:
    """Tell whether ``value`` is exactly a ``str`` without lone surrogates."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- the walk over a value ----------------------------------------------------------------------


def _check(value: object, depth: int) -> None:
    """Refuse what JSON cannot carry. The place is put together while the refusal unwinds."""
    kind = type(value)
    if kind is dict:
        _check_depth(depth)
        for key, member in cast("dict[object, object]", value).items():
            _check_key(key)
            _check_member(member, str(key), depth)
    elif kind is list:
        _check_depth(depth)
        for index, member in enumerate(cast("list[object]", value)):
            _check_member(member, str(index), depth)
    else:
        reason = _scalar_fault(value)
        if reason is not None:
            raise NotStrictJson(reason)


def _scalar_fault(value: object) -> str | None:
    kind = type(value)
    if kind is str:
        return None if is_text(value) else "a lone surrogate is not Unicode text"
    if kind is int:
        if -INTEGER_LIMIT < cast("int", value) < INTEGER_LIMIT:
            return None
        return f"an integer of more than {MAX_INTEGER_DIGITS} digits"
    if kind is float:
        return None if isfinite(cast("float", value)) else f"{value} is not a JSON number"
    if kind is bool or value is None:
        return None
    return f"a value of type {kind.__name__} is not JSON"


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise NotStrictJson(f"a key of type {type(key).__name__} is not a string")
    if not is_text(key):
        raise NotStrictJson("a lone surrogate in a key is not Unicode text")


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotStrictJson(f"nested deeper than {MAX_DEPTH}")


def _check_member(member: object, token: str, depth: int) -> None:
    try:
        _check(member, depth + 1)
    except NotStrictJson as fault:
        raise NotStrictJson(fault.reason, pointer(token) + fault.place) from fault.__cause__


def pointer(token: str) -> str:
    """Return one step of a JSON Pointer (RFC 6901), escaped and safe to print."""
    escaped = token.replace("~", "~0").replace("/", "~1")
    return "/" + escaped.encode("utf-8", "backslashreplace").decode()


# --- parsing --------------------------------------------------------------------------------


class _Unacceptable(Exception):
    """Raised inside the parser by a literal that strict JSON has no room for."""


class _Marked:
    """Stands for an unacceptable literal in the second parse, which looks for its place."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Unacceptable
    return members


def _float(literal: str) -> float:
    value = float(literal)
    if not isfinite(value):
        raise _Unacceptable
    return value


def _refuse_float(literal: str) -> float:
    raise ValueError(literal)


def _integer(literal: str) -> int:
    if len(literal) > MAX_INTEGER_DIGITS and len(literal.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise _Unacceptable
    return int(literal)


def _constant(_literal: str) -> JsonValue:
    raise _Unacceptable


_Scan: TypeAlias = "Callable[[str, int], tuple[JsonValue, int]]"
_scan: _Scan = cast("Any", json.JSONDecoder()).scan_once
_scan_without_floats: _Scan = cast("Any", json.JSONDecoder(parse_float=_refuse_float)).scan_once
_decode: Callable[[str], JsonValue] = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_float=_float,
    parse_int=_integer,
    parse_constant=_constant,
).decode


def _located(text: str) -> NotStrictJson:
    """Parse again, marking what is unacceptable instead of raising, and find the first mark."""

    def mark_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, member in pairs:
            members[key] = _Marked("a duplicate key") if key in members else member
        return members

    def mark_float(literal: str) -> object:
        return float(literal) if isfinite(float(literal)) else _Marked("a number beyond any float")

    def mark_integer(literal: str) -> object:
        if len(literal.lstrip("-")) > MAX_INTEGER_DIGITS:
            return _Marked(f"an integer of more than {MAX_INTEGER_DIGITS} digits")
        return int(literal)

    decoder = json.JSONDecoder(
        object_pairs_hook=mark_object,
        parse_float=mark_float,
        parse_int=mark_integer,
        parse_constant=lambda literal: _Marked(f"{literal} is not a JSON number"),
    )
    try:
        marked: object = decoder.decode(text)
    except (ValueError, RecursionError) as error:  # another fault further on: name that one
        return NotStrictJson(f"not JSON: {error}")
    found = _find_mark(marked)
    if found is None:
        raise AssertionError("the strict parse refused a text in which nothing is marked")
    place, mark = found
    return NotStrictJson(mark.reason, place)


def _find_mark(value: object) -> tuple[str, _Marked] | None:
    """Return the place and mark of the first marked value, depth first; iterative: any depth."""
    pending: list[tuple[str, object]] = [("", value)]
    while pending:
        place, candidate = pending.pop()
        if isinstance(candidate, _Marked):
            return place, candidate
        members: list[tuple[str, object]] = []
        if isinstance(candidate, dict):
            members = list(cast("dict[str, object]", candidate).items())
        elif isinstance(candidate, list):
            indexed = enumerate(cast("list[object]", candidate))
            members = [(str(index), member) for index, member in indexed]
        pending.extend((place + pointer(token), member) for token, member in reversed(members))
    return None
