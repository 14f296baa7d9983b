"""Hooks of mkdocs: the pages of the book that are outside of docs/, and links between them and the others."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPO = Path(__file__).parents[1]
# Files of the repository: their names in the book.
PAGES = {
    "README.md": "index.md",
    "configs/README.md": "recipes.md",
    "tests/README.md": "tests.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+://)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are outside of docs/."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, content=(REPO / path).read_text()))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links as in the repository -> links of the book."""
    places = {name: path for path, name in PAGES.items()}
    folder = posixpath.dirname(places.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def in_book(link: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return PAGES.get(path, path.removeprefix("docs/"))

    return LINK.sub(in_book, markdown)
