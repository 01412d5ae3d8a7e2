"""The schema files under ``schemas/``, and whether a JSON value fits one.

``jsonschema`` is the reference: it decides, and it words every refusal. Because it costs more
than everything else an append does, ``jsonschema_rs`` is asked first and may only accept; what
it does not accept goes to the reference. So where the fast engine gives up (its regular
expressions have a budget, which an id of a million digits exceeds) nothing sound is refused;
that it accepts nothing the reference would refuse is for the differential tests to show.

Both see strict JSON only: the fast engine would accept NaN and tuples.

:func:`compile_schema` has the same two engines judge by a schema that comes from elsewhere, such
as a tool's. There the engines are not held against each other, so in the corners where they read
a keyword differently (what ``\\w`` is, a multiple of 0.1) a value passes if either lets it pass.
"""

from __future__ import annotations

import json
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from attrs import frozen
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match  # pyright: ignore[reportUnknownVariableType] # stubs leave its key open
from jsonschema_rs import Draft202012Validator as FastValidator
from jsonschema_rs import Registry as FastRegistry
from jsonschema_rs import ValidationError as FastError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema

from actors.strict_json import pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema.exceptions import ValidationError

    from actors.strict_json import JsonValue

SCHEMA_DIRECTORY = Path(__file__).resolve().parent.parent / "schemas"
"""Beside the package, in the source tree and in an installed distribution alike."""
SCHEMA_BASE = "https://sessiond.dev/schemas/"
"""What every ``$id`` begins with; a name, never fetched."""
SCHEMA_SUFFIX = ".schema.json"
FAULT_LENGTH = 200
"""Characters of a fault: the reference's wording repeats the instance."""
_FAULT_TAIL_LENGTH = 80
_ERRORS_WEIGHED = 32


def payload_fault(event_type: str, payload: JsonValue) -> str | None:
    """Return why ``payload`` is no payload of an event of this type; None if it is one."""
    pair = _payload_validators().get(event_type)
    if pair is None:
        return f"unknown event type {event_type!r:.80}"
    return None if pair.fast.is_valid(payload) else pair_fault(pair, payload)


def document_fault(name: str, document: JsonValue) -> str | None:
    """Return why ``document`` does not fit the schema file called ``name``; None if it fits.

    ``name`` is a path below ``schemas/`` without the suffix. The fault names the place as a
    JSON Pointer and is at most :data:`FAULT_LENGTH` characters long.

    Raises:
        KeyError: there is no such file.
    """
    return pair_fault(validators(name), document)


def pair_fault(pair: ValidatorPair, document: JsonValue) -> str | None:
    """Return why ``document`` does not fit the compiled schema, in one line; None if it fits."""
    if pair.fast.is_valid(document):
        return None
    try:
        return reference_fault(pair.reference, document)
    except (ArithmeticError, RecursionError, Unresolvable) as error:
        # Only by a schema from elsewhere: the reference takes no remainder of huge numbers, and
        # follows a recursive schema less deep than JSON may be. The fast engine has refused.
        return f"does not fit the schema; where, cannot be told ({type(error).__name__})"


def reference_fault(validator: Draft202012Validator, document: JsonValue) -> str | None:
    """Return the reference validator's most telling error in one line; None if it has none."""
    # A long array can hold millions of errors, each worded when found: only the first few are
    # weighed. The stubs leave the error's type open; it is what iter_errors yields.
    errors = islice(validator.iter_errors(document), _ERRORS_WEIGHED)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] # so do they here
    error = cast("ValidationError | None", best_match(errors))  # pyright: ignore[reportUnknownArgumentType] # and here
    return None if error is None else _told(error)


def _told(error: ValidationError | SchemaError) -> str:
    place, message = _place(error.absolute_path), _message(error)
    return _cut(f"{place}: {message}" if place else message)


def _place(path: Iterable[str | int]) -> str:
    """Return a path as a JSON Pointer on one line; a key as long as a document is not copied."""
    text = "".join(pointer(str(token)[:FAULT_LENGTH]) for token in path)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _message(error: ValidationError | SchemaError) -> str:
    """Return the error's message, or what each alternative lacks where none of them fits."""
    first_of_branch: dict[object, str] = {}
    for cause in error.context or ():
        first_of_branch.setdefault(cause.schema_path[0], cause.message)
    return "; or ".join(first_of_branch.values()) or error.message


def _cut(text: str) -> str:
    """Shorten from the middle: the place stands first, and the complaint after the instance."""
    if len(text) <= FAULT_LENGTH:
        return text
    head = text[: FAULT_LENGTH - _FAULT_TAIL_LENGTH - 1]
    return f"{head}…{text[-_FAULT_TAIL_LENGTH:]}"


@cache
def event_types() -> frozenset[str]:
    """Return the tags that have a payload schema."""
    return frozenset(
        name.removeprefix("events/") for name in schemas() if name.startswith("events/")
    )


@cache
def schemas() -> Mapping[str, dict[str, Any]]:
    """Return every schema file's content by name."""
    return {
        path.relative_to(SCHEMA_DIRECTORY).as_posix().removesuffix(SCHEMA_SUFFIX): cast(
            "dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))
        )
        for path in sorted(SCHEMA_DIRECTORY.rglob(f"*{SCHEMA_SUFFIX}"))
    }


@frozen
class ValidatorPair:
    """One schema compiled by both engines."""

    reference: Draft202012Validator
    fast: FastValidator


@cache
def validators(name: str) -> ValidatorPair:
    """Return the schema called ``name``, compiled by both engines."""
    schema = schemas()[name]
    return ValidatorPair(
        Draft202012Validator(schema, registry=_registry()),
        FastValidator(schema, registry=_fast_registry()),
    )


@cache
def _payload_validators() -> Mapping[str, ValidatorPair]:
    """Return the payloads' schemas by tag: asked for at every event."""
    return {tag: validators(f"events/{tag}") for tag in event_types()}


@cache
def _registry() -> Registry[Schema]:
    """Return all files, crawled. It retrieves nothing: an unknown reference raises."""
    resources = (
        (str(schema["$id"]), Resource[Schema](schema, DRAFT202012)) for schema in schemas().values()
    )
    return Registry[Schema]().with_resources(resources).crawl()


@cache
def _fast_registry() -> FastRegistry:
    return FastRegistry([(str(schema["$id"]), schema) for schema in schemas().values()])


# --- a schema from elsewhere --------------------------------------------------------------------

_DIALECT = str(Draft202012Validator.META_SCHEMA["$id"])
_REFERENCES = ("$ref", "$dynamicRef")
_APPLIED_IN_PLACE = ("not", "if", "then", "else")
_APPLIED_IN_PLACE_EACH = ("allOf", "anyOf", "oneOf", "dependentSchemas")
"""Keywords whose schemas judge the very value that theirs does, not a part of it."""


def compile_schema(schema: Mapping[str, Any]) -> ValidatorPair:
    """Compile a schema that is not one of the files, once it is found to be sound.

    A reference must lead to a place within the schema, which others are given alone. Nothing is
    fetched. ``pattern`` must be a regular expression to both engines.

    Raises:
        ValueError: it is no valid schema of draft 2020-12, a reference leads nowhere, or it
            applies itself to the same value for ever.
    """
    try:
        Draft202012Validator.check_schema(schema)  # with formats: "regex" is one
        _check_references(schema)
        return ValidatorPair(
            Draft202012Validator(schema, registry=Registry[Schema]()),
            FastValidator(dict(schema), retriever=_refuse_to_retrieve),
        )
    except SchemaError as error:
        raise ValueError(_told(error)) from error
    except FastError as error:
        raise ValueError(_cut(error.message)) from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _check_references(schema: Mapping[str, Any]) -> None:
    """Follow every reference, also from parts that no value could lead an engine to.

    Raises:
        ValueError: one leads nowhere within the schema, or round in a circle; or a part claims
            to be of another dialect.
    """
    root = Resource[Schema](schema, DRAFT202012)
    pending = [(root, Registry[Schema]().resolver_with_root(root))]
    applied: dict[int, list[int]] = {}  # by identity: which judge the same value as which
    while pending:
        resource, resolver = pending.pop()
        contents = resource.contents
        if isinstance(contents, bool):
            continue
        dialect = contents.get("$schema", _DIALECT)
        if str(dialect).removesuffix("#") != _DIALECT:
            raise ValueError(f"$schema: {dialect!r:.80} is not {_DIALECT}")
        in_place = _applied_in_place(contents)
        for reference in (contents[keyword] for keyword in _REFERENCES if keyword in contents):
            try:
                in_place.append(resolver.lookup(reference).contents)
            except Unresolvable as error:
                message = f"{reference!r:.80} leads to no place within the schema"
                raise ValueError(message) from error
        applied[id(contents)] = [id(part) for part in in_place]
        pending += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
    try:
        TopologicalSorter(applied).prepare()
    except CycleError as error:
        raise ValueError("it applies itself to the same value for ever") from error


def _applied_in_place(contents: Mapping[str, Any]) -> list[object]:
    parts = [contents[keyword] for keyword in _APPLIED_IN_PLACE if keyword in contents]
    for keyword in _APPLIED_IN_PLACE_EACH:
        several = contents.get(keyword, ())
        parts += several.values() if isinstance(several, dict) else several
    return parts


def _refuse_to_retrieve(uri: str) -> NoReturn:
    raise ValueError(f"{uri!r:.80} is not within the schema")
