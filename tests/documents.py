"""The repository's pages, and what stands in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md"]
PAGES += sorted(DOCS.glob("*.md"))

on_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())

_FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def fenced(page):
    """Language and text of every code block."""
    return _FENCED.findall(page.read_text())


def blocks(page, language):
    return [text for of_block, text in fenced(page) if of_block == language]


def prose(page):
    return _FENCED.sub("", page.read_text())


def inline_code(page):
    return re.findall(r"`([^`\n]+)`", prose(page))


def console_lines(page):
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
