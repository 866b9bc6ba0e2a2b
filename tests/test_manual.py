"""The manual builds strictly, has a page for everything, and fetches nothing."""

import html
import os
import re
import subprocess
import sys

import click
import pytest
from documents import DOCS, ROOT
from reference_pages import every_command

from airdistill.scenario.reference import scenario_fields


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr  # with --quiet strictness would see none
    return folder


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_page_is_there(site):
    for page in DOCS.glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page.name
    assert (site / "project/CONTRIBUTING.html").is_file()
    assert not (site / "making").exists()


def test_every_field_is_in_the_reference(site):
    told = text_of(site / "reference/scenario.html")
    for field in scenario_fields():
        assert field.name in told
        assert field.description.replace("`", "") in told
        assert field.kind in told


def test_every_command_argument_and_option_is_in_the_reference(site):
    told = text_of(site / "reference/commands.html")
    for name, command in every_command():
        section = told.split(f"{name}¶")[1].split("¶")[0]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            written = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.metavar or "FIGURE"
            assert written in section, (name, written)
            assert parameter.help in section, (name, written)


def test_nothing_is_fetched_from_the_net(site):
    for page in site.rglob("*.html"):
        fetching = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        assert [tag for tag in fetching if re.search(r"(src|href)=\"?https?:", tag)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?https?:", sheet.read_text()), sheet


def test_links_out_of_the_docs_folder_lead_to_pages(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root, because it is shown at any address
            continue
        for target in re.findall(r'<a [^>]*href="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
