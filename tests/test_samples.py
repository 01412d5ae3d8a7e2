"""The samples beside the schemas: every validator says of each what the index says of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen
from jsonschema import Draft202012Validator
from jsonschema_rs import Draft202012Validator as FastValidator
from jsonschema_rs import FancyRegexOptions, RegexOptions
from jsonschema_rs import Registry as FastRegistry
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012, Schema
from test_schemas import subschemas

from actors import strict_json
from actors.validation import SCHEMA_BASE, SCHEMA_DIRECTORY, SCHEMA_SUFFIX, schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.exceptions import ValidationError

SAMPLES = SCHEMA_DIRECTORY / "samples"
INDEX: list[dict[str, Any]] = json.loads((SAMPLES / "index.json").read_text(encoding="utf-8"))
REGISTRY = Registry[Schema]().with_resources(
    (str(schema["$id"]), Resource[Schema](schema, DRAFT202012)) for schema in schemas().values()
)
FAST_REGISTRY = FastRegistry([(str(schema["$id"]), schema) for schema in schemas().values()])
WORDS = {"const", "enum"}
"""What a schema's alternatives are told apart by."""


@frozen
class Sample:
    """One line of the index."""

    schema: str
    file: str
    valid: bool
    at: str
    keyword: str

    @property
    def document(self) -> Any:
        return json.loads((SAMPLES / self.file).read_text(encoding="utf-8"))

    @property
    def reference(self) -> dict[str, str]:
        """A schema that is the one the sample is of."""
        return {"$ref": SCHEMA_BASE + self.schema}


def samples() -> Iterator[Sample]:
    for group in INDEX:
        for each in group["samples"]:
            told = (each.get("at", ""), each.get("keyword", ""))
            yield Sample(group["schema"], each["file"], each["valid"], *told)


ALL = list(samples())
VALID = [sample for sample in ALL if sample.valid]
INVALID = [sample for sample in ALL if not sample.valid]


def file_of(sample: Sample) -> str:
    return sample.file


def reasons(error: ValidationError) -> set[tuple[str, str]]:
    """Return the places and keywords for which a value was refused.

    Of alternatives only those count that the value means: where one is refused for the constant
    that tells them apart, another is meant, unless that is so of all.
    """
    if not error.context:
        place = "".join(f"/{token}" for token in error.absolute_path)
        return {(place, str(error.validator))}
    branches: dict[object, set[tuple[str, str]]] = {}
    for cause in error.context:
        branches.setdefault(cause.schema_path[0], set()).update(reasons(cause))
    depth = len(list(error.absolute_path)) + 1
    told_apart = {
        branch: {
            (place, word) for place, word in found if word in WORDS and place.count("/") == depth
        }
        for branch, found in branches.items()
    }
    meant = [found for branch, found in branches.items() if not told_apart[branch]]
    return {reason for found in meant or told_apart.values() for reason in found}


def test_the_index_names_every_file() -> None:
    """The index and the folder hold the same files, each in the directory of its kind."""
    found = {path.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("*.json")}
    assert {sample.file for sample in ALL} == found - {"index.json"}
    assert len({sample.file for sample in ALL}) == len(ALL)
    for sample in ALL:
        assert f"/{'valid' if sample.valid else 'invalid'}/" in sample.file
        folder = sample.schema.replace(SCHEMA_SUFFIX, "").replace("#/$defs", "")
        assert sample.file.startswith(f"{folder}/")


def test_every_schema_has_both_kinds() -> None:
    """Each file and each definition has valid and invalid samples; none asserts nothing."""
    wanted: set[str] = set()
    for name, schema in schemas().items():
        wanted |= {f"{name}{SCHEMA_SUFFIX}"} if schema.keys() & {"type", "oneOf"} else set()
        wanted |= {f"{name}{SCHEMA_SUFFIX}#/$defs/{inner}" for inner in schema.get("$defs", {})}
    for kind in (VALID, INVALID):
        assert {sample.schema for sample in kind} == wanted


def test_every_keyword_occurs() -> None:
    """The invalid samples are refused for every assertion that the schemas make."""
    asserted = {
        keyword
        for schema in schemas().values()
        for _, part in subschemas(schema)
        for keyword in part
    } - {"$schema", "$id", "$ref", "$defs", "title", "description", "properties", "items"}
    assert {sample.keyword for sample in INVALID} == asserted - {"allOf", "if", "then"}


@pytest.mark.parametrize("sample", ALL, ids=file_of)
def test_it_is_strict_json(sample: Sample) -> None:
    """What is wrong with a sample is for a schema to say: all are strict JSON."""
    text = (SAMPLES / sample.file).read_text(encoding="utf-8")
    assert strict_json.loads(text) == sample.document


@pytest.mark.parametrize("sample", ALL, ids=file_of)
def test_validators_agree(sample: Sample) -> None:
    """The reference and an engine in another language, in both its dialects, say what is told."""
    document = sample.document
    reference = Draft202012Validator(sample.reference, registry=REGISTRY)
    verdicts = {"jsonschema": reference.is_valid(document)}  # pyright: ignore[reportUnknownMemberType] # the stubs' JSON
    for options in (RegexOptions(), FancyRegexOptions()):
        engine = FastValidator(sample.reference, registry=FAST_REGISTRY, pattern_options=options)
        verdicts[type(options).__name__] = engine.is_valid(document)
    assert set(verdicts.values()) == {sample.valid}, verdicts


@pytest.mark.parametrize("sample", INVALID, ids=file_of)
def test_one_reason(sample: Sample) -> None:
    """An invalid sample is refused at one place, by the keyword that the index names."""
    validator = Draft202012Validator(sample.reference, registry=REGISTRY)
    errors = validator.iter_errors(sample.document)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] # the stubs leave the error's type open
    found: set[tuple[str, str]] = set().union(*(reasons(error) for error in errors))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # so do they here
    assert (sample.at, sample.keyword) in found
    assert {place for place, _ in found} == {sample.at}, found
