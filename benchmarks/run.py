"""Measure sessiond beside plain SQLite doing the same work, in the same run.

A figure alone says more about the machine than about the code; the ratio to the same work on the
same machine, taken in turns, is what can be compared from one day to another.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from benchmarks import appends, reload, serving, sizes, startup
from benchmarks.environment import environment, heading
from benchmarks.lines import USUAL_EVENTS_N, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.lines import Family, Line, Result

FAMILIES: dict[str, Family] = {
    "appends": appends,
    "reload": reload,
    "sizes": sizes,
    "serving": serving,
    "startup": startup,
}
"""In the order of the table."""
EXIT_MISSED = 1
QUICK_EVENTS_N = 2_000
USUAL_ROUNDS_N, QUICK_ROUNDS_N = 7, 3


class Progress:
    """One line on standard error that says what is being measured, where that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def say(self, what: str) -> None:
        """Replace the line."""
        if self._is_shown:
            print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        self.say("")


def told_sizes(settings: Settings) -> str:
    """Return how much is measured."""
    return f"{settings.rounds_n} rounds, a long session of {settings.events_n:,} events"


def table_head() -> str:
    """Return the head of the table."""
    return (
        f"{'measure':<58}{'value':>10} {'unit':<12}{'must':>8}{'aim':>8}  "
        f"{'verdict':<8}least … most of the rounds"
    )


def table_row(result: Result, events_n: int) -> str:
    """Return a result as a row of the table; the long session has ``events_n`` events."""
    line, rounds = result.line, result.rounds
    spread = f"{number(min(rounds))} … {number(max(rounds))}" if rounds else ""
    limits = "".join(
        f"{'' if limit is None else number(limit):>8}" for limit in (line.must, line.aim)
    )
    return (
        f"{line.measure_at(events_n):<58}{number(result.value):>10} {line.unit:<12}{limits}  "
        f"{line.verdict(result.value):<8}{spread}"
    ).rstrip()


def number(value: float) -> str:
    """Return a number as short as three digits allow."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def result_value(result: Result, events_n: int, *, whole: bool) -> dict[str, Any]:
    """Return a result as a JSON object; the ``whole`` of it has every round and every sample."""
    line, rounds = result.line, result.rounds
    value: dict[str, Any] = {
        "line": line.name,
        "measure": line.measure_at(events_n).strip(),
        "value": result.value,
        "unit": line.unit,
        "must": line.must,
        "aim": line.aim,
        "more_is_better": line.more_is_better,
        "verdict": line.verdict(result.value),
        "least": min(rounds) if rounds else None,
        "most": max(rounds) if rounds else None,
        "medians": result.medians,
        "notes": dict(result.notes),
    }
    if whole:
        value["rounds"] = list(rounds)
        value["samples"] = {name: list(taken) for name, taken in result.samples.items()}
    return value


def all_lines() -> dict[str, Line]:
    """Return every line by its name, in the order of the table."""
    return {line.name: line for line in chain.from_iterable(f.LINES for f in FAMILIES.values())}


def chosen_lines(names: Sequence[str]) -> set[str]:
    """Return the lines that are meant by names of lines and of families; by none, all.

    Raises:
        click.BadParameter: there is no such name.
    """
    chosen: set[str] = set()
    for name in chain.from_iterable(each.split(",") for each in names):
        if name in FAMILIES:
            chosen.update(line.name for line in FAMILIES[name].LINES)
        elif name in all_lines():
            chosen.add(name)
        else:
            known = ", ".join((*FAMILIES, *all_lines()))
            raise click.BadParameter(f"no line or family is called {name!r}; there are: {known}")
    return chosen or set(all_lines())


def measured(settings: Settings, chosen: set[str]) -> Iterator[Result]:
    """Measure each family that has a chosen line; yield the results of those lines as they come."""
    for family in FAMILIES.values():
        if chosen.isdisjoint(line.name for line in family.LINES):
            continue
        for result in family.measure(settings):
            if result.line.name in chosen:
                yield result


@click.command()
@click.option(
    "--only",
    "names",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="Lines or families of lines; may be given again.",
)
@click.option("--rounds", "rounds_n", type=click.IntRange(min=1), help="[default: 7, quick: 3]")
@click.option(
    "--events",
    "events_n",
    type=click.IntRange(min=100),
    help="Events of the long session; the longest has ten times as many.  "
    "[default: 20000, quick: 2000]",
)
@click.option("--quick", "is_quick", is_flag=True, help="Fewer rounds and smaller sizes.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Where the databases are written: the disk that is measured.  [default: here]",
)
@click.option("--json", "json_only", is_flag=True, help="The JSON document without the table.")
@click.option("--table", "table_only", is_flag=True, help="The table without the JSON document.")
@click.option(
    "--json-file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the JSON document here, with every sample, as the results come.",
)
@click.option("--check", is_flag=True, help="Exit with 1 if a line misses what it must reach.")
def main(
    names: tuple[str, ...],
    rounds_n: int | None,
    events_n: int | None,
    directory: Path,
    json_file: Path | None,
    *,
    is_quick: bool,
    json_only: bool,
    table_only: bool,
    check: bool,
) -> None:
    """Measure sessiond beside plain SQLite; print a table, and then the same as JSON."""
    chosen = chosen_lines(names)
    progress = Progress()
    began = time.perf_counter()
    results: list[Result] = []
    with TemporaryDirectory(prefix="bench-", dir=directory) as name:
        settings = Settings(
            Path(name),
            rounds_n or (QUICK_ROUNDS_N if is_quick else USUAL_ROUNDS_N),
            events_n or (QUICK_EVENTS_N if is_quick else USUAL_EVENTS_N),
            is_quick,
            progress.say,
        )
        setting = environment(settings.place) | {
            "rounds": settings.rounds_n,
            "events": settings.events_n,
            "quick": is_quick,
        }

        def document(*, whole: bool) -> str:
            rows = [result_value(each, settings.events_n, whole=whole) for each in results]
            return json.dumps({**setting, "results": rows}, ensure_ascii=False)

        if not json_only:
            print(heading(setting))
            print(f"sizes       {told_sizes(settings)}")
            print(f"\n{table_head()}", flush=True)
        for result in measured(settings, chosen):
            results.append(result)
            progress.clear()
            if not json_only:
                print(table_row(result, settings.events_n), flush=True)
            if json_file is not None:
                json_file.write_text(f"{document(whole=True)}\n", encoding="utf-8")
    progress.clear()
    setting["seconds"] = round(time.perf_counter() - began, 1)
    if not json_only:
        print(f"\n{setting['seconds']} s")
    if not table_only:
        print(document(whole=False))
    if check and any(result.line.verdict(result.value) == "MISSED" for result in results):
        sys.exit(EXIT_MISSED)


if __name__ == "__main__":
    main()
