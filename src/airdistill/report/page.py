"""Build one HTML file from finished text, rows and drawings.

A file needs nothing else: no network, no script and no font of its own. The HTML is in `templates/`; this module holds
the parts of a page as data and fills the templates with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from airdistill.report.drawing import inline_svg

if TYPE_CHECKING:
    from jinja2 import Environment

_LETTER_EM, _PADDING_EM = 0.56, 1.2  # widths in a table, in multiples of its type size
_LONGEST_LINE = 24  # text in a cell may wrap after this many letters


@dataclass(frozen=True)
class Paragraph:
    macro: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Bullets:
    macro: ClassVar[str] = "bullets"
    lines: tuple[str, ...]
    kind: Literal["plain", "warning"] = "plain"


@dataclass(frozen=True)
class Facts:
    """Rows of label and value."""

    macro: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DataTable:
    """A table whose first column names the rows. Columns outside `align_left` are numbers."""

    macro: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    align_left: tuple[int, ...] = (0,)
    highlight_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells, but the table has {len(self.columns)} columns: {row}")

    @property
    def classes(self) -> list[str]:
        """The CSS class of every column."""
        return ["text" if index in self.align_left else "number" for index in range(len(self.columns))]

    @property
    def width_em(self) -> float:
        """The approximate natural width. Print scales by it, because paper does not scroll and CSS cannot measure."""
        width = 0.0
        for index, column in enumerate(self.columns):
            longest = max((len(row[index]) for row in self.rows), default=0)
            if index in self.align_left:
                longest = min(longest, _LONGEST_LINE)
            longest_word = max(map(len, column.split()), default=0)
            width += _LETTER_EM * max(longest, longest_word) + _PADDING_EM
        return width


@dataclass(frozen=True)
class Drawing:
    """A figure. `svg` is trusted; every other string on a page is escaped."""

    macro: ClassVar[str] = "drawing"
    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Command:
    macro: ClassVar[str] = "command"
    text: str


@dataclass(frozen=True)
class Verdict:
    """`verdict` is "holds", "does not hold", "simulation", or a text that means none of them."""

    statement: str
    verdict: str
    numbers: str
    source: str


@dataclass(frozen=True)
class Verdicts:
    macro: ClassVar[str] = "verdicts"
    items: tuple[Verdict, ...]


Block: TypeAlias = Paragraph | Bullets | Facts | DataTable | Drawing | Command | Verdicts


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made_by: str


def render(page: Page) -> str:
    """Return the whole file."""
    anchors = _anchors(section.title for section in page.sections)
    sections = list(zip(anchors, _with_inline_drawings(page.sections), strict=True))
    return _templates().get_template("page.html").render(page=page, sections=sections)


def _with_inline_drawings(sections: Iterable[Section]) -> list[Section]:
    """Give every drawing of the page names of its own."""
    # Anchors are in lower case, and so a section's title cannot take the name of a drawing.
    names = (f"D{number}" for number in count(1))

    def inlined(block: Block) -> Block:
        if not isinstance(block, Drawing):
            return block
        return replace(block, svg=inline_svg(block.svg, next(names), block.alt))

    return [Section(section.title, tuple(map(inlined, section.blocks))) for section in sections]


@cache
def _templates() -> Environment:
    # Imported here because most commands do not write a page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("airdistill.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _anchors(titles: Iterable[str]) -> list[str]:
    anchors: list[str] = []
    for title in titles:
        stem = re.sub(r"\W+", "-", title.lower()).strip("-") or "section"
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        anchors.append(next(anchor for anchor in candidates if anchor not in anchors))
    return anchors
