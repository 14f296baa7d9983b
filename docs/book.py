"""Hooks of mkdocs: the pages of the book that are made from other files, and links between them and the others."""

import base64
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

import vitdense

REPO = Path(__file__).parents[1]
# Files of the repository: their names in the book.
PAGES = {
    "README.md": "readme.md",
    "configs/README.md": "recipes.md",
    "tests/README.md": "tests.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.txt",
}
TOUR = "tour.ipynb"
LINK = re.compile(r"(?<=\]\()(?![a-z]+://)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> None:
    """The version is a part of every page's header."""
    config.site_name += f" {vitdense.__version__}"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are outside of docs/, and the notebook as a page with the pictures that are stored in it."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, content=(REPO / path).read_text()))
    text, pictures = notebook_page(json.loads((REPO / "docs" / TOUR).read_text()))
    files.append(File.generated(config, "tour.md", content=text))
    for name, png in pictures.items():
        files.append(File.generated(config, name, content=png))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """`llms.txt`: what each page is about, for those who read by machine."""
    lines = ["# vitdense", "", f"> {first_paragraph(files.get_file_from_path('index.md'))}"]
    for section in nav.items:
        lines += ["", f"## {section.title}", ""]
        for page in section.children:
            title, *_ = page.file.content_string.lstrip("# ").splitlines()
            sentence = re.match(r".+?(?:[.](?=\s)|$)", first_paragraph(page.file))[0]
            lines.append(f"- [{title}]({page.file.dest_uri}): {sentence}")
    files.append(File.generated(config, "llms.txt", content="\n".join(lines) + "\n"))


def first_paragraph(file: File) -> str:
    """The first paragraph of text of a page, without links."""
    texts = (part for part in file.content_string.split("\n\n") if re.match(r"[A-Za-z*\[]|`(?!``)", part))
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(next(texts, "").split()))


def notebook_page(notebook: dict) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by their file names."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        outputs = cell["outputs"]
        if printed := "".join("".join(output.get("text", "")) for output in outputs).replace("\r\n", "\n"):
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for output in outputs:
            if png := output.get("data", {}).get("image/png"):
                name = f"images/tour-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(png))
                parts.append(f"![Output of the lines above]({name})")
    return "\n\n".join(parts), pictures


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links as in the repository -> links of the book."""
    places = {name: path for path, name in PAGES.items()}
    folder = posixpath.dirname(places.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def in_book(link: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        path = PAGES.get(path, path.removeprefix("docs/").replace(TOUR, "tour.md"))
        return posixpath.relpath(path, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(in_book, markdown)
