"""Turn files outside docs/ that the manual links to into pages, and so the same link works on a code host and here."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = "project/"  # the folder of those pages in the site

# On a code host a link to the reference leads to the source that it is generated from.
_MADE_FROM = {
    ROOT / "src/airdistill/scenario/model.py": "reference/scenario.md",
    ROOT / "src/airdistill/cli/__init__.py": "reference/commands.md",
    ROOT / "docs/making/pictures.py": "reference/pictures.md",
}
_LINK = re.compile(r"(?P<text>[\w/.-]*)\]\((?!\w+:)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_LANGUAGES = {".py": "python", ".toml": "toml"}


def linked_pages(nav: object) -> dict[str, str]:
    """Pages for all files that the navigation names or that are reachable from it by links."""
    waiting = [*DOCS.glob("*.md"), *(ROOT / uri.removeprefix(OUTSIDE) for uri in _outside_pages(nav))]
    seen: dict[Path, str] = {}
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen[path] = _as_markdown(path)
        if path.suffix == ".md":
            waiting += [target for target in linked_files(seen[path], path) if target.suffix != ".png"]
    return {_uri(path): text for path, text in seen.items() if DOCS not in path.parents and path not in _MADE_FROM}


def linked_files(markdown: str, page: Path) -> list[Path]:
    found = [(page.parent / link["target"]).resolve() for link in _LINK.finditer(markdown)]
    return [path for path in found if path.is_file()]


def with_links_in_the_site(markdown: str, uri: str) -> str:
    """Rewrite the links of a page for its place in the site. Broken links stay as they are: mkdocs rejects them."""
    page, folder = _path(uri), Path(uri).parent

    def moved(link: re.Match[str]) -> str:
        target = (page.parent / link["target"]).resolve()
        if not target.is_file():
            return link[0]
        text = _title(target) if link["text"].endswith(target.name) else link["text"]
        return f"{text}]({os.path.relpath(_uri(target), folder)}{link['anchor'] or ''})"

    return _LINK.sub(moved, markdown)


def _title(page: Path) -> str:
    """The heading of a page, which says more to a reader than its file name."""
    heading = re.match(r"# (.*)", page.read_text(encoding="utf-8")) if page.suffix == ".md" else None
    return heading[1] if heading else page.name


def _outside_pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav] if nav.startswith(OUTSIDE) else []
    entries = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [uri for entry in entries for uri in _outside_pages(entry)]


def _as_markdown(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    fence = f"```{_LANGUAGES.get(path.suffix, 'text')}"
    return f"# {path.relative_to(ROOT)}\n\n{fence}\n{text.rstrip()}\n```\n"


def _uri(path: Path) -> str:
    if path in _MADE_FROM:
        return _MADE_FROM[path]
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    inside = OUTSIDE + path.relative_to(ROOT).as_posix()
    return inside if path.suffix == ".md" else f"{inside}.md"


def _path(uri: str) -> Path:
    """The path in the repository of a page's text."""
    return ROOT / uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS / uri
