"""The book of `make docs`, and its pictures."""

import json
import re
import socket

import pytest
from conftest import REPO
from mkdocs.commands.build import build
from mkdocs.config import load_config

import gallery
import vitdense
from vitdense.mm import registry

pytestmark = pytest.mark.docs

# Entries of the registries that belong to another project.
OTHERS = {"LN2d"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built where a warning is an error and no connection can be made."""

    def refuse(*_):
        raise OSError("the book needs no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.chdir(REPO)
        folder = tmp_path_factory.mktemp("site")
        build(load_config(str(REPO / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


def test_pages_load_no_files_from_other_hosts(site):
    pages = list(site.glob("*.html"))
    assert len(pages) > len(list(REPO.glob("docs/*.md")))
    for page in pages:
        assert not re.search(r"<(script|link|img)\b[^>]*(src|href)=\"?https?:", page.read_text()), page.name


def test_readme_has_links_of_the_book(site):
    page = (site / "readme.html").read_text()
    for link in ("install.html", "contributing.html", "changelog.html", "LICENSE.txt", "images/photos.png"):
        assert re.search(rf'(href|src)="{link}', page), link
        assert (site / link).is_file()
    assert 'href="recipes.html#recipes"' in (site / "choose.html").read_text()


def test_the_tour_is_a_page_with_its_pictures(site):
    page = (site / "tour.html").read_text()
    notebook = json.loads((REPO / "docs/tour.ipynb").read_text())
    pictures = sum("image/png" in o.get("data", {}) for cell in notebook["cells"] for o in cell.get("outputs", ()))
    assert pictures > 3
    assert [path.name for path in sorted(site.glob("images/tour-*.png"))] == [f"tour-{i}.png" for i in range(pictures)]
    assert all(f'src="images/tour-{i}.png"' in page for i in range(pictures))
    assert 'href="tour.html"' in (site / "index.html").read_text()


def test_every_page_is_in_llms_txt(site):
    listed = re.findall(r"^- \[.+\]\((.+)\): \S+", (site / "llms.txt").read_text(), re.M)
    assert {*listed} == {str(path.relative_to(site)) for path in site.rglob("*.html")} - {"404.html"}


def test_every_page_has_the_version(site):
    for page in site.glob("*.html"):
        assert f"vitdense {vitdense.__version__}" in page.read_text(), page.name


def test_no_table_is_wider_than_six_columns():
    for page in [*REPO.glob("docs/*.md"), *REPO.glob("*.md"), *REPO.glob("*/README.md")]:
        wide = [line for line in re.findall(r"^\|[-:| ]+\|$", page.read_text(), re.M) if line.count("|") > 7]
        assert not wide, page.name


def test_every_public_name_is_in_the_api_pages(site):
    page = "".join(path.read_text() for path in (site / "api.html", *site.glob("extensions/*.html")))
    registries = [x for x in vars(registry).values() if isinstance(x, registry.Registry)]
    for one in registries:
        one.import_from_location()
    classes = {cls for one in registries for name, cls in one.module_dict.items() if name not in OTHERS}
    public = classes | {getattr(vitdense, name) for name in vitdense.__all__}
    assert len(classes) > 30
    assert [x.__name__ for x in public if f'id="{x.__module__}.{x.__name__}"' not in page] == []


def test_published_rows_match_the_readme():
    rows = list(gallery.published())
    assert ("cascade", "swin", "t", 50.4, 745.0) in rows
    assert ("htcpp", "swin", "l", 57.1, 1470.0) in rows
    assert ("rfdetr", "dinov2", "s", 53.0, 30.0) in rows
    text = (REPO / "configs/README.md").read_text()
    lines = re.findall(r"^\| `\w+_[ntsmbl]_coco\.py`[^|]*\| \d.*$", text, re.M)
    assert len(rows) == len(lines)


def test_pictures_of_the_pages_are_from_the_gallery():
    assert {path.stem for path in REPO.glob("docs/images/*.png")} == {*gallery.PICTURES}


def test_gallery_names_the_needs_of_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery, "REPO", tmp_path)
    monkeypatch.setattr(gallery, "load_config", lambda path: path)
    monkeypatch.setattr("sys.argv", ["gallery.py", "inside", "--out-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        gallery.main()
    assert "work_dirs/cascade_swin_nano_shapes" in capsys.readouterr().err
    assert list(tmp_path.glob("*.png")) == []
