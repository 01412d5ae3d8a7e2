"""A line of the report, what was measured for it, and what a family of lines is given."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


USUAL_EVENTS_N = 20_000
"""Events of the long session, unless asked for others; the longest has ten times as many."""


@frozen
class Line:
    """One measure, and what is asked of it."""

    name: str
    """By which ``--only`` and the JSON know it."""
    measure: str
    """What is measured, at the usual sizes."""
    unit: str
    """What the value counts: a ratio says to what."""
    must: float | None = None
    """What it has to reach; None for a line that is there to be read beside another."""
    aim: float | None = None
    more_is_better: bool = False

    def measure_at(self, events_n: int) -> str:
        """Return what is measured, at the sizes of a run whose long session has ``events_n``."""
        sizes = {f"{USUAL_EVENTS_N:,}": events_n, f"{USUAL_EVENTS_N * 10:,}": events_n * 10}
        return re.sub(r"[0-9][0-9,]*", lambda found: _size(sizes, found[0]), self.measure)

    def reaches(self, value: float, wanted: float) -> bool:
        """Tell whether ``value`` is as good as ``wanted``."""
        return value >= wanted if self.more_is_better else value <= wanted

    def verdict(self, value: float) -> str:
        """Return ``aim``, ``must`` or ``MISSED``, the best that is reached; else nothing."""
        if self.aim is not None and self.reaches(value, self.aim):
            return "aim"
        if self.must is None:
            return ""
        return "must" if self.reaches(value, self.must) else "MISSED"


def _size(sizes: Mapping[str, int], told: str) -> str:
    return f"{sizes[told]:,}" if told in sizes else told


@frozen
class Result:
    """What a line came to."""

    line: Line
    value: float
    rounds: Sequence[float] = ()
    """The same value, computed from each round alone: how far they are apart says how much one
    run says."""
    samples: Mapping[str, Sequence[float]] = field(factory=dict[str, "Sequence[float]"])
    """All that was measured, by side; each name ends with its unit."""
    notes: Mapping[str, float | str] = field(factory=dict[str, "float | str"])
    """What else to know when reading this line."""

    @property
    def medians(self) -> dict[str, float]:
        """The median of each side's samples."""
        return {name: statistics.median(taken) for name, taken in self.samples.items() if taken}


@frozen
class Settings:
    """What a run was asked for."""

    place: Path
    """A directory of the run's own, on the disk that is measured."""
    rounds_n: int
    events_n: int
    """Events of the long session; the longest has ten times as many."""
    is_quick: bool
    say: Callable[[str], None]
    """Tells a person what is being measured."""

    def some(self, usual: int, quick: int) -> int:
        """Return how many to take of something."""
        return quick if self.is_quick else usual


class Family(Protocol):
    """A module that measures lines which share their preparation."""

    @property
    def LINES(self) -> Sequence[Line]:  # noqa: N802 # a constant of the module
        """The lines in the order of the table."""
        ...

    def measure(self, settings: Settings) -> Iterator[Result]:
        """Yield the result of each line, in any order, as soon as it is known."""
        ...


def compared(
    line: Line,
    sides: tuple[str, Sequence[float]],
    base: tuple[str, Sequence[float]],
    notes: Mapping[str, float | str] | None = None,
) -> Result:
    """Return the ratio of one side's median to the base's, with that of each round."""
    (name, ours), (base_name, theirs) = sides, base
    return Result(
        line,
        statistics.median(ours) / statistics.median(theirs),
        [own / other for own, other in zip(ours, theirs, strict=True)],
        {name: ours, base_name: theirs},
        notes or {},
    )
