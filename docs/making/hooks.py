"""Hooks of mkdocs: reference pages, and pages for the repository's own files that other pages link to."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import reference_pages
from repository_files import linked_pages, with_links_in_the_site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, text in {**reference_pages(), **linked_pages(config.nav)}.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    return with_links_in_the_site(markdown, page.file.src_uri)
