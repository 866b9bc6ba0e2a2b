"""A report as one HTML file that needs nothing else: no network, no script, no font of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import count
from typing import Literal, TypeAlias

from airdistill.report.inline_svg import inline_svg

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SIGNS = {"holds": "✓", "does not hold": "✗"}
_LETTER_EM, _PADDING_EM = 0.56, 1.2  # widths in a table, in multiples of its type size
_LONGEST_LINE = 24  # letters after which text in a cell may go on in the next line


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    lines: tuple[str, ...]
    kind: Literal["plain", "warning"] = "plain"


@dataclass(frozen=True)
class Facts:
    """Rows of label and value."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DataTable:
    """The first column names the rows; columns outside `align_left` are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    align_left: tuple[int, ...] = (0,)
    highlight_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """`svg` is the one thing on a page that is trusted and not escaped."""

    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Command:
    text: str


@dataclass(frozen=True)
class Verdict:
    """`verdict` is "holds", "does not hold", or anything between them."""

    statement: str
    verdict: str
    numbers: str
    source: str


@dataclass(frozen=True)
class Verdicts:
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
    """The whole file."""
    anchors = _anchors(section.title for section in page.sections)
    # Anchors are in small letters, so that no section's title can take the name of a drawing.
    drawing_names = (f"D{number}" for number in count(1))
    links = _each('<li><a href="#{}">{}</a></li>', zip(anchors, (s.title for s in page.sections), strict=True))
    sections = "\n".join(
        _section(section, anchor, drawing_names) for section, anchor in zip(page.sections, anchors, strict=True)
    )
    style = resources.files("airdistill.report").joinpath("style.css").read_text("utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escape(page.title)}</h1>
{_unless_empty('<p class="subtitle">{}</p>', page.subtitle)}
</header>
<nav aria-label="Contents">
<ol>{links}</ol>
</nav>
<main>
{sections}
</main>
<footer><p>Made by {escape(page.made_by)}</p></footer>
</body>
</html>
"""


def _anchors(titles: Iterable[str]) -> list[str]:
    anchors: list[str] = []
    for title in titles:
        stem = re.sub(r"\W+", "-", title.lower()).strip("-") or "section"
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        anchors.append(next(anchor for anchor in candidates if anchor not in anchors))
    return anchors


def _section(section: Section, anchor: str, drawing_names: Iterator[str]) -> str:
    blocks = "\n".join(_block(block, drawing_names) for block in section.blocks)
    return f'<section id="{anchor}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: Block, drawing_names: Iterator[str]) -> str:
    match block:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(lines, kind):
            return f'<ul class="{kind}">{_each("<li>{}</li>", zip(lines))}</ul>'
        case Facts(rows):
            return f"<dl>{_each('<div><dt>{}</dt><dd>{}</dd></div>', rows)}</dl>"
        case DataTable():
            return _table(block)
        case Drawing(svg, caption, alt):
            caption = _unless_empty("<figcaption>{}</figcaption>", caption)
            return f'<figure class="drawing">{inline_svg(svg, next(drawing_names), alt)}{caption}</figure>'
        case Command(text):
            return f"<pre><code>{_each('<span>{}</span>', zip(text.splitlines()))}</code></pre>"
        case Verdicts(items):
            return f'<ul class="verdicts">{"".join(map(_verdict, items))}</ul>'


def _verdict(item: Verdict) -> str:
    kind = item.verdict.replace(" ", "-") if item.verdict in _SIGNS else "undecided"
    sign = _SIGNS.get(item.verdict, "?")
    return f"""
<li class="{kind}">
<p class="word"><span aria-hidden="true">{sign}</span> {escape(item.verdict)}</p>
<div><p class="statement">{escape(item.statement)}</p>
{_unless_empty('<p class="numbers">{}</p>', item.numbers)}
{_unless_empty('<p class="source">{}</p>', item.source)}</div>
</li>"""


def _table(table: DataTable) -> str:
    # The caption stands outside of the box that scrolls, or it would leave the screen with the columns.
    label = escape(table.caption or "Table")
    kinds = ["text" if index in table.align_left else "number" for index in range(len(table.columns))]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(column)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = "\n".join(_row(row, kinds, index in table.highlight_rows) for index, row in enumerate(table.rows))
    return f"""<figure class="table">
{_unless_empty("<figcaption>{}</figcaption>", table.caption)}
<div class="scroll" role="region" aria-label="{label}" tabindex="0">
<table style="--width: {_width_em(table):.0f}">
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{_each('<p class="note">{}</p>', zip(table.notes))}
</figure>"""


def _row(cells: tuple[str, ...], kinds: list[str], highlight: bool) -> str:
    shown = "".join(f'<td class="{kind}">{escape(cell)}</td>' for kind, cell in zip(kinds[1:], cells[1:], strict=True))
    header = '<tr class="highlight">' if highlight else "<tr>"
    return f'{header}<th scope="row" class="{kinds[0]}">{escape(cells[0])}</th>{shown}</tr>'


def _width_em(table: DataTable) -> float:
    """Roughly how wide the table wants to be: paper does not scroll and CSS cannot measure, so print scales by this."""
    width = 0.0
    for index, column in enumerate(table.columns):
        longest = max((len(row[index]) for row in table.rows), default=0)
        if index in table.align_left:
            longest = min(longest, _LONGEST_LINE)
        longest_word = max(map(len, column.split()), default=0)
        width += _LETTER_EM * max(longest, longest_word) + _PADDING_EM
    return width


def _each(form: str, rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(form.format(*map(escape, row)) for row in rows)


def _unless_empty(form: str, text: str) -> str:
    return form.format(escape(text)) if text else ""
