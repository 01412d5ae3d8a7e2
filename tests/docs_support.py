"""The project's pages as tests read them: links, code spans, fenced blocks and tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

import actors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(actors.__file__).parent.parent

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@frozen
class Page:
    """A page in Markdown."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Its path from the root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def spans(self) -> list[str]:
        """What stands in backquotes, outside the fenced blocks."""
        # A line may end within a span: there the line end counts as a space.
        outside = re.sub(r"(?<!\n)\n(?!\n)", " ", _FENCED.sub("", self.text))
        return [span.replace(r"\|", "|") for span in _SPAN.findall(outside)]

    def blocks(self, language: str) -> list[str]:
        """Return the fenced blocks of a language; "" are those that name none."""
        return [block for told, block in _FENCED.findall(self.text) if told == language]

    @property
    def code(self) -> str:
        """Everything that is set as code, one piece a line."""
        return "\n".join([*self.spans, *(block for _, block in _FENCED.findall(self.text))])

    @property
    def links(self) -> list[str]:
        """Where its links lead."""
        return _LINK.findall(_FENCED.sub("", self.text))

    @property
    def anchors(self) -> set[str]:
        """The fragments that its headings can be reached by, spelt as web forges spell them."""
        headings = _HEADING.findall(_FENCED.sub("", self.text))
        kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
        return {heading.replace(" ", "-") for heading in kept}

    def section(self, heading: str) -> Page:
        """Return what stands below a heading, up to the next of its rank or above."""
        (found,) = re.finditer(rf"^(#+) {re.escape(heading)}$", self.text, re.MULTILINE)
        rest = self.text[found.end() :]
        end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
        return Page(self.path, rest[: end.start()] if end else rest)

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells of each table row, headers left out."""
        lines = _FENCED.sub("", self.text).splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("|") and not _is_rule(line) and not _is_rule(following):
                cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
                yield [cell.strip() for cell in cells]

    def first_spans(self) -> list[str]:
        """Return what stands in backquotes in the first column of its tables."""
        return [span for row in self.rows() for span in _SPAN.findall(row[0])]


def _is_rule(line: str) -> bool:
    return re.fullmatch(r"\|( *:?-+:? *\|)+", line.strip()) is not None


def page(name: str) -> Page:
    """Return a page by its path from the root."""
    return Page(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))


PAGES = [
    page(path.relative_to(ROOT).as_posix())
    for pattern in ("*.md", "docs/*.md", "schemas/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(pattern))
]
