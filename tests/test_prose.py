"""Pages are read aloud: sentences are short and begin with what they are about, and what users read is not much."""

import re

import pytest
from conftest import REPO

NAMES = ("README.md", "CONTRIBUTING.md", "configs/README.md", "tests/README.md", "docs/**/*.md")
PAGES = sorted(page for name in NAMES for page in REPO.glob(name))


def prose(page):
    """A page without code blocks, references and addresses of links; a span of code is one word."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^(?::::|<|!\[).*?$", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"\[([^\[\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "Code", text))


def words(text):
    return len(re.findall(r"\S*\w\S*", text))


def sentences(page):
    """Sentences of paragraphs, items of lists, and cells of tables."""
    text = re.sub(r"^#.*$|\|", "\n\n", prose(page), flags=re.M)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*>]|\d+\.) )", text):
        block = re.sub(r"^(?:[-*>]|\d+\.) ", "", " ".join(block.split()))
        yield from filter(None, re.split(r"(?<=[.!?])[*_)]*\s+(?=[^a-z])", block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_sentences_are_short_and_begin_with_what_they_are_about(page):
    assert [one for one in sentences(page) if words(one) > 30 or one.startswith("Of ")] == []


def test_users_read_at_most_12000_words():
    """In the sections of the book that are read; the others are to look things up."""
    nav = (REPO / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    read = "".join(re.search(rf"^  - {title}:\n((?:    .*\n)+)", nav, re.M)[1] for title in ("Use it", "Extensions"))
    found = [REPO / "docs" / name for name in re.findall(r"\S+\.md", read) if name not in ("readme.md", "tour.md")]
    assert sum(words(prose(page)) for page in [REPO / "README.md", *found]) <= 12000
