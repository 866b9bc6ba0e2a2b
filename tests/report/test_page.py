"""The HTML of a page: escaping, structure, drawings and print."""

import io
import re
from html import unescape
from html.parser import HTMLParser

import jinja2
import pytest
from matplotlib.figure import Figure

from airdistill.report.page import (
    Bullets,
    Command,
    DataTable,
    Drawing,
    Facts,
    Page,
    Paragraph,
    Section,
    Verdict,
    Verdicts,
    _templates,
    render,
)

EVIL = "<script>alert('\"1\" & 2')</script>"
VOID = {"meta", "link"}


class Reader(HTMLParser):
    """Collect the tags, attributes and texts of a page, and check that every element is closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())

    def values(self, *keys):
        return [value for key, value in self.attributes if key in keys]


def figure_svg(hatch="//"):
    """Return a figure with everything that matplotlib refers to by id: glyphs, clip paths, markers, hatches, images."""
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.plot([0, 1, 2], "o-", label="gap < 1")
    axes.fill_between([0, 1, 2], [0, 1, 2], hatch=hatch, alpha=0.3)
    axes.imshow([[1, 2], [3, 4]])
    axes.legend()
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()


def page_of(*blocks, title="Results"):
    return Page("A report", "of a run", (Section(title, blocks),), "airdistill 0.1.0")


def page_with_all_blocks(word, svg):
    blocks = (
        Paragraph(word),
        Bullets((word, word)),
        Bullets((word,), "warning"),
        Facts(((word, word),)),
        DataTable((word, word), ((word, word),), caption=word, notes=(word,)),
        Drawing(svg, word, word),
        Drawing(svg, word, word),
        Command(word),
        Verdicts((Verdict(word, "holds", word, word),)),
    )
    return Page(word, word, (Section(word, blocks), Section(word, ())), word)


def test_every_string_is_escaped():
    html = render(page_with_all_blocks(EVIL, figure_svg()))
    page = Reader(html)
    assert "script" not in page.tags
    # head and h1, subtitle, 2 × (link, heading); paragraph, 3 bullets, fact, table, 2 drawings, command, verdict
    assert page.texts.count(EVIL) == (2 + 1 + 2 * 2) + (1 + 3 + 2 + 6 + 2 + 1 + 3)
    assert page.texts.count(f"Made by {EVIL}") == 1
    assert page.values("aria-label").count(EVIL) == 3  # a table and two drawings


def test_a_page_loads_nothing():
    html = render(page_with_all_blocks("words", figure_svg()))
    assert "://" not in html
    assert "@import" not in html
    references = Reader(html).values("src", "href", "xlink:href", "action", "data", "srcset")
    assert all(reference.startswith(("#", "data:")) for reference in references)
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in html


def test_two_drawings_do_not_share_ids():
    svg = figure_svg()
    page = Reader(render(page_of(Drawing(svg, "one", "first"), Drawing(svg, "two", "second"))))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    named = [
        name for value in page.values("clip-path", "style", "fill") for name in re.findall(r"url\(#(.*?)\)", value)
    ]
    used = [value[1:] for value in page.values("href") if value.startswith("#D")]
    for drawing in ("D1-", "D2-"):
        assert len([name for name in named if name.startswith(drawing)]) == len(re.findall(r"url\(#", svg))
        assert len([name for name in used if name.startswith(drawing)]) == len(re.findall(r'xlink:href="#', svg))
    assert set(named + used) <= set(ids)


def test_a_drawing_has_an_accessible_name_and_its_own_style():
    html = render(page_of(Drawing(figure_svg(), "The gap", 'gap over "rounds"')))
    assert "<?xml" not in html
    assert html.count("<!DOCTYPE") == 1
    assert "<metadata" not in html
    header = re.search(r"<svg[^>]*>", html)[0]
    assert 'role="img"' in header
    assert 'aria-label="gap over &quot;rounds&quot;"' in header
    assert 'viewBox="0 0 288 216"' in header
    assert 'style="max-width: 499px"' in header  # 1.3 times 288 pt, which are 384 px
    assert not re.search(r" (width|height)=", header)
    assert "#D1 *{stroke-linejoin" in html


@pytest.mark.parametrize(("width", "most"), [("100", 130), ("100px", 130), ("72pt", 125)])
def test_a_drawing_is_scaled_by_at_most_1_3(width, most):
    html = render(page_of(Drawing(f'<svg width="{width}" viewBox="0 0 1 1"/>', "", "")))
    assert f"max-width: {most}px" in html


def test_a_drawing_without_a_natural_width_is_rejected():
    with pytest.raises(ValueError, match="100%"):
        render(page_of(Drawing('<svg width="100%" viewBox="0 0 1 1"/>', "", "")))


def test_text_in_a_drawing_is_not_changed_like_a_reference():
    svg = '<svg width="9pt" viewBox="0 0 9 9"><text>url(#a) href="#a"</text></svg>'
    assert 'url(#a) href="#a"' in unescape(render(page_of(Drawing(svg, "", ""))))


def test_contents_link_to_the_sections():
    titles = ("Results", "results!", "Results 2", "ε > 1", "?", "D1", "Results")
    drawing = Drawing(figure_svg(), "", "")
    page = Page("A report", "", tuple(Section(title, (drawing,)) for title in titles), "airdistill")
    reader = Reader(render(page))
    links = [value[1:] for value in reader.values("href") if value.startswith("#")][: len(titles)]
    assert links == ["results", "results-2", "results-2-2", "ε-1", "section", "d1", "results-3"]
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    assert [name for name in ids if not name.startswith("D")] == links


def test_bullets_and_facts():
    html = render(page_of(Bullets(("one", "two")), Bullets(("careful",), "warning"), Facts((("Rounds", "72"),))))
    assert '<ul class="plain">\n<li>one</li>\n<li>two</li>\n</ul>' in html
    assert '<ul class="warning">\n<li>careful</li>\n</ul>' in html
    assert "<dt>Rounds</dt><dd>72</dd>" in html


def test_a_table_names_its_rows_and_columns():
    table = DataTable(
        ("scheme", "accuracy", "remark"),
        (("ota_fd", "82%", "best"), ("local_only", "76%", "")),
        caption="Accuracy",
        notes=("over three seeds",),
        align_left=(0, 2),
        highlight_rows=(1,),
    )
    html = render(page_of(table))
    assert '<th scope="col" class="number">accuracy</th>' in html
    assert (
        '<tr><th scope="row" class="text">ota_fd</th><td class="number">82%</td><td class="text">best</td></tr>' in html
    )
    assert html.count('<tr class="highlight"><th scope="row" class="text">local_only</th>') == 1
    assert "<figcaption>Accuracy</figcaption>" in html
    assert '<p class="note">over three seeds</p>' in html


def test_print_knows_the_width_of_a_table():
    def width(num_columns, cell):
        html = render(page_of(DataTable(("n",) * num_columns, ((cell,) * num_columns,), align_left=())))
        return int(re.search(r"--width: (\d+)", html)[1])

    assert width(10, "1.00") > width(2, "1.00")
    assert width(2, "1000000.00") > width(2, "1.00")


def test_a_row_with_too_many_cells_is_rejected():
    with pytest.raises(ValueError, match="3 cells, but the table has 2 columns"):
        DataTable(("a", "b"), (("1", "2", "3"),))


def test_a_command_is_shown_as_typed():
    text = "airdistill plan paper \\\n  --set seed=3\n\nairdistill run paper"
    code = re.search(r"<pre><code>(.*?)</code></pre>", render(page_of(Command(text))), re.DOTALL)[1]
    assert re.sub("<[^>]*>", "", code) == text


@pytest.mark.parametrize(("verdict", "sign"), [("holds", "✓"), ("does not hold", "✗"), ("undecided", "?")])
def test_a_verdict_has_a_word_and_a_sign(verdict, sign):
    reader = Reader(render(page_of(Verdicts((Verdict("Noise is free", verdict, "82 against 76", "runs/a"),)))))
    for words in ("Noise is free", verdict, sign, "82 against 76", "runs/a"):
        assert words in reader.texts


def test_templates_escape_and_reject_undefined_names():
    templates = _templates()
    assert templates.autoescape is True
    with pytest.raises(jinja2.UndefinedError):
        templates.from_string("{{ nothing }}").render()
