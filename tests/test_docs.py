"""README and docs: Python code runs, links and tables are complete. Commands and configs: `test_pages.py`."""

import ast
import contextlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import supervision
import timm
import torch
from conftest import RECIPES, REPO
from PIL import Image

import vitdense
from vitdense import seams
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.schemes import NAMING
from vitdense.families import MODELS, find_model
from vitdense.mm.data.shapes import draw_image

pytestmark = pytest.mark.docs

PAGES = [REPO / "README.md", REPO / "configs/README.md", *sorted(REPO.glob("docs/**/*.md"))]
TOY_PAGE = REPO / "docs/adding-a-backbone.md"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.name}:{self.line}"

    @property
    def first(self):
        """Its first line, which says what a python or diff block is for."""
        return self.text.partition("\n")[0]

    @property
    def is_config(self):
        return self.first == "# config"

    @property
    def is_module(self):
        """Whether it is a file beside the configs of its page."""
        return self.language == "python" and re.fullmatch(r"# \w+\.py", self.first)


def blocks(page):
    text = page.read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield Block(page, text[: match.start()].count("\n") + 1, match[1], match[2])


BLOCKS = [block for page in PAGES for block in blocks(page)]
CONFIGS = [block for block in BLOCKS if block.is_config]


def test_every_block_is_of_a_kind_that_is_tested():
    before = None
    for block in BLOCKS:
        assert block.language in ("python", "text", "bash", "diff"), block
        assert block.language != "diff" or block.page == TOY_PAGE, block
        if block.language == "text":  # what the block before it prints
            assert before.language in ("python", "bash"), block
            assert before.page == block.page, block
        before = block


# Python


def weights(state):
    return lambda path: torch.save({"state_dict": state()}, path)


BOX = {"image_id": 1, "category_id": 1, "bbox": [2, 2, 9, 9]}
MASK = {"size": [64, 64], "counts": "R49g1000000000000000nY3"}
TRUTH = {"images": [{"id": 1, "width": 64, "height": 64}], "categories": [{"id": 1, "name": "square"}]}
TRUTH["annotations"] = [{**BOX, "id": 1, "area": 81, "iscrowd": 0, "segmentation": [[2, 2, 11, 2, 11, 11, 2, 11]]}]
FILES = {  # that blocks read
    "swin_tiny_patch4_window7_224.pth": weights(lambda: of_timm("swin_tiny_patch4_window7_224")),
    "swin_with_positions.pth": weights(lambda: of_authors(vitdense.Swin("tiny", absolute_position=True))),
    "deit_tiny.pth": weights(lambda: of_authors(vitdense.ViT("deit_tiny"))),
    "swin_mlp_tiny_c24_patch4_window8_256.pth": weights(lambda: of_authors(vitdense.SwinMixer("tiny_d24"))),
    "video.mp4": lambda path: video(path),
    "scene.npy": lambda path: np.save(path, np.zeros((300, 400, 3), np.uint8)),
    "predictions/shapes_nano/drawn/val/000001.jpg": lambda path: photo(Path(path)),
    "val.json": lambda path: Path(path).write_text(json.dumps(TRUTH)),
    "predictions.json": lambda path: Path(path).write_text(json.dumps([{**BOX, "score": 0.9, "segmentation": MASK}])),
}
# A smaller model for what takes minutes on a page; tests/models/test_export.py exports all families.
FOUR_BLOCKS = "ViT(dict(embed_dims=32, depth=4, num_heads=2), out_indices=(0, 1, 2, 3)).eval()"
SMALLER = {"export.md": {'create("swin_tiny", pretrained=True)': FOUR_BLOCKS}}


def photo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_image(np.random.default_rng(0), size=(256, 256))[0]).save(path)


def video(path):
    with supervision.VideoSink(path, supervision.VideoInfo(width=160, height=120, fps=5, total_frames=2)) as sink:
        for _ in range(2):
            sink.write_frame(np.zeros((120, 160, 3), np.uint8))


def of_authors(model):
    return convert(model.state_dict(), "official", drop_output_norms=True).state


def of_timm(name):
    return timm.create_model(name).state_dict()


@pytest.fixture
def no_downloads(tmp_path, monkeypatch):
    """Work in an empty folder; in place of a download there is a file of timm's with other weights."""

    def cached(repo, *args, **kwargs):
        owner, _, model = repo.partition("/")
        assert owner == "timm"
        torch.save(of_timm(model), tmp_path / model)  # timm's files have no wrapper
        return str(tmp_path / model)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)


def run(code, namespace):
    """The output of a block, or the error it ends with, as Python shows it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(code, namespace)
        except CheckpointMismatchError as error:
            return f"{type(error).__name__}: {error}"
    return out.getvalue()


@pytest.mark.parametrize("page", [page for page in PAGES if page != TOY_PAGE], ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_the_page_shows(page, no_downloads, monkeypatch):
    """The blocks of a page share their names, as for a reader who runs them one after the other."""
    for draw in ("uniform_", "normal_", "erfinv_"):  # which takes seconds, and nothing here depends on it
        monkeypatch.setattr(torch.Tensor, draw, lambda tensor, *args, **kwargs: tensor.fill_(0.02))
    namespace = {}
    found = list(blocks(page))
    for block, after in zip(found, [*found[1:], None]):
        if block.language != "python" or block.is_config or block.is_module:
            continue
        for name in FILES:
            if name in block.text:
                FILES[name](name)
        code = block.text
        for shown, small in SMALLER.get(page.name, {}).items():
            code = code.replace(shown, small)
        printed = run(code, namespace)
        if after is not None and after.language == "text":
            assert printed.split() == after.text.split(), f"{after}: the block before it prints\n{printed}"
        else:
            assert "Error" not in printed, f"{block}: {printed}"


def test_make_targets_of_the_docs_exist():
    targets = re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.M)
    named = {target for page in PAGES for target in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert named <= {*targets}


# Links and tables


@pytest.mark.parametrize("page", [*PAGES, REPO / "CONTRIBUTING.md", REPO / "CHANGELOG.md"], ids=lambda page: page.name)
def test_relative_links_resolve(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text().lower(), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", heading.strip()).replace(" ", "-") for heading in headings]  # GitHub's
            assert anchor in anchors, f"{page.name}: {link}"


def test_every_docs_page_is_linked_from_the_readme():
    text = (REPO / "README.md").read_text()
    pages = {page.name for page in REPO.glob("docs/*.md")} - {"index.md"}  # which is the README of the book
    assert [name for name in sorted(pages) if f"(docs/{name})" not in text] == []


def texts(path):
    """What the strings of a module say, with ``...`` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_of_the_troubleshooting_page_are_in_the_code():
    ours = (REPO / "docs/troubleshooting.md").read_text().split("\n## Messages of vitdense\n")[1].split("\n## ")[0]
    messages = re.findall(r"^### `(.+)`$", ours, re.M)
    assert len(messages) > 10
    said = [text for path in (REPO / "vitdense").rglob("*.py") for text in texts(path)]
    # A fault is printed as what it is and, after a semicolon, what to do.
    parts = [part for message in messages for part in message.split("; ")]
    assert [part for part in parts if not any(part in text for text in said)] == []


def test_every_config_is_in_the_readme_or_the_docs():
    text = "".join(page.read_text() for page in PAGES)
    assert [path.stem for path in RECIPES if path.stem not in text] == []


def test_headings_of_the_api_page_are_the_names_below():
    text = (REPO / "docs/api.md").read_text()
    entries = re.findall(r"^::: (\S+)(?:\n    options: \{(?:heading: ([\w.]+))?.*\})?$", text, re.M)
    headings = {heading: path.rpartition(".")[2] for path, heading in entries if heading}
    assert headings == {f"vitdense.{name}": name for name in vitdense.__all__}


def test_configs_named_in_the_pages_exist():
    for page in PAGES:
        for name in re.findall(r"configs/[\w/]+\.py", page.read_text()):
            assert (REPO / name).is_file(), f"{page.name}: {name}"


def rows(page, heading):
    text = re.split(rf"\n##+ {heading}\n", (REPO / page).read_text())[1]
    table = re.search(r"^\|.+?(?=\n\n)", text, re.M | re.S)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def test_every_family_and_size_of_the_model_table_is_in_the_zoo():
    table = rows("docs/model-zoo.md", "Families")
    assert {cells[2] for cells in table} == {f"`vitdense.{row.family}`" for row in MODELS.values()}
    sizes = r"mini|atto|femto|pico|nano|tiny|small|medium|base|large|huge|giant|7b|so400m|x*[sm]\d\d|\d+$"
    for row in MODELS.values():
        size = re.search(sizes, row.model)[0]
        assert any(size in cells[1] for cells in table if cells[2] == f"`vitdense.{row.family}`"), row.name


# Heads of extensions have their own pages.
OF_EXTENSIONS = {family for extension in seams.extensions().values() for family in extension.schemes}
OWN_NAMING = {family: naming for family, naming in NAMING.items() if family not in OF_EXTENSIONS}


def test_naming_schemes_of_the_docs_match_the_code():
    table = rows("docs/model-zoo.md", "Naming schemes")
    named = {cells[0].split("`")[1]: re.findall(r"`(\w+)`", cells[1]) for cells in table}
    assert {family: {*names} for family, names in named.items()} == {
        family: {scheme.name for scheme in naming.schemes} for family, naming in OWN_NAMING.items()
    }


def test_every_scheme_is_in_the_parity_table_or_named_as_absent():
    page = REPO / "docs/parity.md"
    (table,) = (block.text for block in blocks(page) if block.language == "text")
    shown = {tuple(line.split()[:2]) for line in table.splitlines()[1:]}
    known = {(family, scheme.name) for family, naming in OWN_NAMING.items() for scheme in naming.schemes}
    assert shown < known
    for family, scheme in known - shown:
        assert scheme == "vitdense" or f"`{scheme}` of `{family}`" in page.read_text(), (family, scheme)


def test_options_of_the_docs_match_init_cfg():
    options = {*inspect.signature(load_pretrained).parameters} - {"model", "checkpoint", "allow"}
    assert {cells[0].strip("`") for cells in rows("docs/python.md", "Options")} == options


def test_models_named_in_the_docs_are_in_the_model_table():
    families = "swin|swinv2|mvitv2|vit|deit|deit3|cait|dinov2|dinov3|eva02|siglip2|pe_spatial"
    for page in PAGES:
        for name in re.findall(rf"`((?:{families})_[a-z]\w*(?:\.\w+)?)`", page.read_text()):
            assert name in NAMING or name.endswith(".pth") or find_model(name), f"{page.name}: {name}"


# The toy family


def patched(text, hunk):
    """`text` with a hunk of a diff applied; what it replaces must be there once."""
    lines = hunk.strip("\n").splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(f"\n{old}") == 1, f"not there once:\n{old}"
    return text.replace(f"\n{old}", f"\n{new}")


def test_toy_family_is_one_folder_one_line_and_one_row(tmp_path):
    """The page's code, in a copy of the repository, builds, loads and passes the contract of all backbones."""
    for name in ("vitdense", "tools", "scripts"):
        shutil.copytree(REPO / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests/models").mkdir(parents=True)
    copied = ("pyproject.toml", "tests/conftest.py", "tests/models/contract_rows.py", "tests/models/test_contract.py")
    for name in copied:
        shutil.copy(REPO / name, tmp_path / name)
    places, final, printed = set(), None, None
    for block in blocks(TOY_PAGE):
        if block.language == "diff":
            place = block.first.removeprefix("+++ ")
            text = (tmp_path / place).read_text()
            for hunk in block.text.partition("\n")[2].split("@@\n"):
                text = patched(text, hunk)
            (tmp_path / place).write_text(text)
        elif block.language == "python" and block.first.endswith(".py"):
            place = block.first.removeprefix("# ")
            assert not (tmp_path / place).exists()
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).with_name("__init__.py").touch()
            (tmp_path / place).write_text(block.text)
        else:
            final, printed = (block, printed) if block.language == "python" else (final, block)
            continue
        places.add(place)
    listed = {cells[0].strip("`").replace("<family>", "toy") for cells in rows(TOY_PAGE, "Places")}
    assert places == listed
    (tmp_path / "tests/test_page.py").write_text(
        f"def test_toy_page(capsys, tmp_path, monkeypatch):\n    monkeypatch.chdir(tmp_path)\n"
        f"    exec({final.text!r}, {{}})\n    assert capsys.readouterr().out.split() == {printed.text.split()!r}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "toy", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20
