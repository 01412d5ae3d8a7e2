"""What a run of the benchmarks prints: a table with the sizes of that run, and JSON to keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks import run
from benchmarks.lines import Line, Result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.lines import Settings

LONG = Line("long", "reload of 20,000 events against 200", "plain read", 2.5, 1.5)
LONGEST = Line("longest", "snapshot() at 200,000 events", "µs", 2, 1)


class Measured:
    """A family whose lines need no measuring."""

    LINES = (LONG, LONGEST)

    def measure(self, settings: Settings) -> Iterator[Result]:
        """Yield what a run came to."""
        settings.say("something")
        yield Result(LONG, 1.25, [1.0, 1.5], {"ours [s]": [1.0, 9.0]}, {"events": 1})
        yield Result(LONGEST, 3)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FAMILIES", {"measured": Measured()})


def ran(*arguments: str) -> list[str]:
    done = CliRunner().invoke(run.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ([], ("20,000", "200,000")),
        (["--quick"], ("2,000", "20,000")),
        (["--events", "300"], ("300", "3,000")),
    ],
)
def test_rows_name_the_sizes_of_the_run(
    options: list[str], sizes: tuple[str, str], tmp_path: Path
) -> None:
    """What the table and the JSON call a line has the sizes that were measured."""
    *table, document = ran(*options, "--directory", str(tmp_path))
    named = [f"reload of {sizes[0]} events against 200", f"snapshot() at {sizes[1]} events"]
    assert [line[:58].rstrip() for line in table if "events " in line[:58]] == named
    assert [each["measure"] for each in json.loads(document)["results"]] == named


def test_samples_are_in_the_file_alone(tmp_path: Path) -> None:
    """The line after the table has medians, ratios and limits; the file also what they are of."""
    kept = tmp_path / "kept.json"
    *_, last = ran("--directory", str(tmp_path), "--json-file", str(kept))
    short, whole = (json.loads(text)["results"][0] for text in (last, kept.read_text("utf-8")))
    assert short == {
        "line": "long",
        "measure": "reload of 20,000 events against 200",
        "value": 1.25,
        "unit": "plain read",
        "must": 2.5,
        "aim": 1.5,
        "more_is_better": False,
        "verdict": "aim",
        "least": 1.0,
        "most": 1.5,
        "medians": {"ours [s]": 5.0},
        "notes": {"events": 1},
    }
    assert whole == short | {"rounds": [1.0, 1.5], "samples": {"ours [s]": [1.0, 9.0]}}
    assert ran("--directory", str(tmp_path), "--json")[0].startswith('{"durability"')
    assert "{" not in "".join(ran("--directory", str(tmp_path), "--table"))
