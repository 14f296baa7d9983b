"""What the pages show runs: every command, `--cfg-options` line and config of README and docs, on small twins.

A twin is the recipe itself with images of 64 pixels, small heads and a length of an epoch or three iterations, with
validation. The commands of a page run in order, in a folder with small data in the layout of COCO, ADE20K and others.
"""

import json
import re
import shlex
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tifffile
import timm
import torch
from commands import run_command, succeed
from conftest import RECIPES, REPO
from kinds import VocFolder, Yolo
from mmdet.datasets import CocoDataset, CocoPanopticDataset
from mmengine.config import Config
from mmengine.registry import DATASETS
from PIL import Image
from test_docs import BLOCKS, CONFIGS, PAGES
from torch.distributed.run import parse_args as torchrun_arguments

import vitdense
from vitdense.families import find_model
from vitdense.mm import precision
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import nodes
from vitdense.mm.data.shapes import CLASSES as SHAPES
from vitdense.mm.data.shapes import draw_dataset

pytestmark = pytest.mark.docs

SIDE = 64  # of the images of twins, in pixels
# Sizes on which no other part of a model depends, and their upper limits.
LIMITS = {
    **{"num_layers": 2, "num_queries": 20, "nms_pre": 100, "max_per_img": 20, "fc_out_channels": 64, "num": 64},
    **{"num_points": 256, "num_dn_queries": 10, "channels": 64},
}
# Widths of detectors from a feature pyramid on, which all follow.
WIDTHS = ("in_channels", "out_channels", "feat_channels", "conv_out_channels")
# In place of large recipes: the same model, small in every part.
LARGE = ("cascade_swin_t_coco", "mask_rcnn_swin_t_coco", "cascade_nat_t_coco")
TWINS = dict.fromkeys(LARGE, "cascade_swin_nano_coco")
PATHS = {path.stem: path for path in RECIPES if path.stem != "shapes_nano"}  # which is small, and trained
# Words of the pages, and what stands for them here.
WORDS = {
    "/path/to/coco": "data/coco",
    "/path/to/camvid": "data/camvid",
    "/path/to/photos": "photos",
    "/path/to/ADEChallengeData2016": "data/ade/ADEChallengeData2016",
    "--image-size 640": f"--image-size {SIDE + 32}",
    "--batch-size 4": "--batch-size 2",
    "--total-batch-size 12": "--total-batch-size 2",
    "dataset.indices=16": "dataset.indices=2",
    "--shape 800 1344": "--shape 64 96",
    "--shape 768 1280": "--shape 64 96",
    "--shape 1024 1024": "--shape 64 64",
    "--shape 512 512": "--shape 64 64",
    "--rounds 7": "--rounds 1",
    "--steps 60": "--steps 2",
    "--amp": "--amp bfloat16",  # float16 needs a GPU
    "--amp bfloat16 bfloat16": "--amp bfloat16",
    "dinov2_base": "dinov2_small",
    "predictions/shapes_nano/drawn/val": "photos",
    "photo.jpg": "photos/000001.jpg",
    # Twins find nothing that is worth its score.
    "--int8": "--int8 --unchecked",
    "--score-thr 0.6": "--score-thr 0",
    "--tiles 640": "--tiles 48",
}
# Commands that are not run here, and configs that are built alone, by a pattern, and why.
NOT_RUN = {
    r"^pip install": "installs; .ci/run does it",
    r"^git clone": "needs a network",
    r"^vitdense predict rfdetr_keypoints_coco": "downloads; tests/extensions/keypoints",
    r"^vitdense new detection --(oriented|dota)": "of other labels; tests/extensions/oriented",
    r"^vitdense demo": "takes minutes; tests/mm/cli/test_demo.py",
    r"^vitdense export work_dirs/streets_linear": "takes a minute; tests/mm/export/test_exported_files.py",
    r"^make ": "targets are the tests themselves, or the demo",
    r"^python -m pytest": "a test of its own",
    r"--predictions predictions.json": "of another project; tests/extensions/errors/test_errors.py",
    r"--device cuda": "needs a GPU",
    r"--deploy": "takes minutes; tests/scripts/test_deploy.py",
    r"--shard": "needs several processes; tests/extensions/shard/test_shard.py",
    r"distill_deit_s": "its teacher has 84 M parameters; tests/research/pretraining/test_classifier.py",
    r"convert dinov3_vits16_pretrain": "the file is behind a form; tests/tools/test_convert_tool.py",
    r"convert swin_tiny .*--verify": "downloads; tests/tools/test_convert_tool.py",
    r"htcpp_swin_l": "283 M parameters",
    r"(mae_vit_b|simmim_swin_b)": "86 M parameters in batches of 512; tests/research/pretraining/test_masked.py",
    r'type="Albu"': "albumentations is not installed here",
    r"in_channels=4": "needs images of four channels; tests/checkpoint/test_load.py",
    r"--log-to.* wandb": "needs an account; tests/tools/test_tools.py",
}


# Small data


def annotations(source, target, things, stuff=()):
    """Copy an annotation file of drawn shapes, with other names of categories, and gaps between their ids."""
    content = json.loads(source.read_text())
    content["categories"] = [
        {"id": 7 * i, "name": name, "isthing": int(name in things)} for i, name in enumerate((*things, *stuff), 1)
    ]
    for one in content["annotations"]:
        for part in one.get("segments_info", [one]):
            is_thing = part["category_id"] <= len(SHAPES)
            part["category_id"] = 7 * ((part["category_id"] - 1) % len(things) + 1 if is_thing else len(things) + 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content))


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with the data that the pages name; images of training and validation are the same."""
    root, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    shapes = draw_dataset(root / "shapes", num_train=2, num_val=1, image_size=(72, 96))
    images, instances = shapes / "train", shapes / "annotations/instances_train.json"
    panoptic, segments = shapes / "panoptic/panoptic_train.json", shapes / "panoptic/train"

    def link(source, *places):
        for place in places:
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).symlink_to(source)

    def label_maps(place, classes=256):
        (root / place).mkdir(parents=True)
        for path in (shapes / "semantic/train").iterdir():
            Image.fromarray((np.array(Image.open(path), int) % classes).astype(np.uint8)).save(root / place / path.name)

    shutil.copytree(images, root / "streets/images")
    link(images, "photos", "more_photos", "pets/images")
    link(segments, "streets/segments")
    meta = CocoPanopticDataset.METAINFO
    stuff = [name for name in meta["classes"] if name not in meta["thing_classes"]]
    for split, long in (("train", "training"), ("val", "validation")):
        coco, ade = "data/coco", "data/ade/ADEChallengeData2016"
        link(images, f"{coco}/{split}2017", f"data/camvid/images/{split}", f"{ade}/images/{long}")
        link(images, f"streets/images/{split}")
        annotations(instances, root / f"{coco}/annotations/instances_{split}2017.json", CocoDataset.METAINFO["classes"])
        annotations(panoptic, root / f"{coco}/annotations/panoptic_{split}2017.json", meta["thing_classes"], stuff)
        link(segments, f"{coco}/annotations/panoptic_{split}2017")
        annotations(instances, root / f"pets/{split}.json", ("cat", "dog"))
        annotations(panoptic, root / f"streets/{split}.json", ("car", "person"), ("road",))
        label_maps(f"data/camvid/annotations/{split}")
        label_maps(f"{ade}/annotations/{long}")
        label_maps(f"streets/labels/{split}", classes=3)
        label_maps(f"fields/labels/{split}", classes=3)
        (root / f"fields/images/{split}").mkdir(parents=True)
        for path in images.iterdir():
            bands = rng.integers(0, 1000, (72, 96, 5), np.uint16)
            place = root / f"fields/images/{split}/{path.stem}.tif"
            tifffile.imwrite(place, bands, planarconfig="contig", photometric="minisblack")
    Yolo().write(root / "birds")
    VocFolder().write(root / "VOCdevkit/VOC2012")
    return root


@pytest.fixture
def here(small_data, tmp_path, monkeypatch):
    """An empty folder with the small data, which is the current one."""
    for path in small_data.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(draw_dataset, "__defaults__", (2, 2, (96, 96), 0, None, None))  # images, and their size
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)  # others emulate it, slowly
    monkeypatch.setattr(torch.Tensor, "erfinv_", lambda x: x)  # of normal draws, the slow part; uniform ones will do
    return tmp_path


# Twins


@pytest.fixture(scope="session")
def weights_of(tmp_path_factory):
    """In place of a download: a file as the published one, with other weights."""
    folder = tmp_path_factory.mktemp("weights")

    @cache
    def write(name):
        published = find_model(name).weights
        own = timm.create_model(published[7:]) if published.startswith("timm://") else vitdense.create(name)
        state = own.state_dict()
        values = 0.02 * torch.randn(max(x.numel() for x in state.values()))  # of every tensor: a small file
        drawn = {key: x for key, x in state.items() if x.is_floating_point() and not key.endswith("running_var")}
        state |= {key: values[: x.numel()].view(x.shape) for key, x in drawn.items()}
        torch.save(state, folder / f"{name}.pth")
        return str(folder / f"{name}.pth")

    return write


@pytest.fixture
def twin(here, weights_of):
    """Write a small twin of a config: to a path here, by default where it is in the repository; returns the path."""

    def write(source, path=None):
        path = here / (path or Path(source).relative_to(REPO))
        if path.exists() and path != Path(source):
            return path
        cfg = Config.fromfile(source)
        limits = {**LIMITS, **dict.fromkeys(WIDTHS, 64)} if "roi_head" in cfg.model else LIMITS
        for node in nodes(cfg.model):
            node.update({key: min(node[key], limit) for key, limit in limits.items() if isinstance(node.get(key), int)})
            if checkpoint := (node.get("init_cfg") or {}).get("checkpoint"):
                known = find_model(checkpoint)
                assert known or "://" in checkpoint or checkpoint.startswith("work_dirs/"), checkpoint
                node["init_cfg"] = {**node["init_cfg"], "checkpoint": weights_of(checkpoint)} if known else None
        for loader in filter(None, (cfg.get(f"{split}_dataloader") for split in ("train", "val", "test"))):
            loader.update(batch_size=min(loader.batch_size, 2), num_workers=0, persistent_workers=False)
        length = {"max_iters": 3} if "max_iters" in cfg.train_cfg else {"max_epochs": 1}
        packs = any("Pack" in str(step.get("type")) for step in nodes(cfg.get("val_dataloader")))
        resizes = cfg.default_scope != "mmseg" or any("crop_size" in step for step in nodes(cfg.train_dataloader))
        cfg.settings = {**cfg.get("settings", {}), **length, **({"image_size": SIDE} if packs and resizes else {})}
        if "://" in str(cfg.get("load_from")):
            cfg.load_from = None
        # A fourth of the time of a short training; tests/extensions/curves has them.
        cfg.get("default_hooks", {}).update(curves=None)
        path.parent.mkdir(parents=True, exist_ok=True)
        # mmengine's own `dump` formats, which takes seconds
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in cfg.to_dict().items()), encoding="utf-8")
        return path

    return write


def recipe(name):
    return PATHS[TWINS.get(name, name)]


def trained(config, folder):
    """A work folder as a training of a config leaves it, with random weights; returns the checkpoint."""
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(config, folder)
        cfg = load_config(config)
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            meta = {"dataset_meta": registry.build(cfg.test_dataloader.dataset).metainfo, "iter": 1, "epoch": 1}
        torch.manual_seed(0)
        model = build_model(cfg)
        for name, parameter in model.named_parameters():
            if "conv_logits" in name:  # an untrained mask is everywhere near its threshold
                torch.nn.init.normal_(parameter, std=0.3)
        torch.save({"state_dict": model.state_dict(), "meta": meta}, folder / "epoch_36.pth")
        (folder / "last_checkpoint").write_text("epoch_36.pth")
    return folder / "epoch_36.pth"


# Commands


def commands(page):
    for block in BLOCKS:
        if block.language == "bash" and block.page == page:
            for line in block.text.replace("\\\n", " ").splitlines():
                line = re.sub(r" +", " ", line).strip()
                if shlex.split(line, comments=True):
                    yield line


def is_run(line):
    return not any(re.search(pattern, line) for pattern in NOT_RUN)


def train(words):
    """Train; there is a log, with a metric for each task, but where nothing is to be validated, or to be resumed."""
    printed = succeed(["train", *words])
    if "--resume" in words:  # of a training that has ended
        return
    assert re.search(r"(Epoch|Iter)\(train\)", printed), printed[-2000:]
    if not re.search("/masked_|val_cfg=None", shlex.join(map(str, words))):
        assert re.search(r"(Epoch|Iter)\(val\)", printed), printed[-2000:]


def prepare(words, here, twin, weights_of):
    for i, word in enumerate(words[1:], 1):
        folder = here / word
        if re.fullmatch(r"configs/[\w/]+\.py", word):
            twin(recipe(Path(word).stem), word)
        elif word in PATHS:
            words[i] = str(twin(recipe(word), f"twins/{word}.py"))
        elif word == "my_config.py":
            Path(word).write_text('_base_ = "mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py"\n')
        elif word == "load_from=detector.pth":
            shutil.copy(trained(here / words[1], here / "detector"), "detector.pth")
        elif words[0] == "convert" and i == 1 and find_model(word):
            words[i] = weights_of(word)
        elif words[0] == "convert" and i == 1:
            base, own = twin(recipe("cascade_swin_t_coco"), "base.py"), here / f"{Path(word).parent.name}.py"
            lora = "model = dict(backbone=dict(finetune='lora'))\n" if "lora" in word else ""
            own.write_text(f'_base_ = "{base}"\n{lora}')
            trained(own, folder.parent)
        elif words[0] == "plot" and re.fullmatch(r"work_dirs/\w+", word) and not folder.exists():
            succeed(["train", twin(recipe(folder.name), f"{folder.name}.py")])
        elif words[0] != "train" and re.fullmatch(r"work_dirs/\w+", word):
            own = here / f"{folder.name}.py"
            trained(own if own.exists() else twin(recipe(folder.name), f"twins/{own.name}"), folder)
        elif word in ("CHECKPOINT", "epoch_36.pth", "iter_160000.pth"):
            words[i] = str(trained(here / words[1], here / "trained" / Path(words[1]).stem))


def command_of(line):
    """The words of a command after `vitdense`, as it is run here; for several processes the words of one, which stands
    for all: see tests/tools/test_processes.py."""
    for old, new in WORDS.items():
        line = line.replace(old, new)
    words = shlex.split(line, comments=True)
    if "torchrun" in words:
        launch = torchrun_arguments(words[words.index("torchrun") + 1 :])
        assert launch.module, line
        words = [launch.training_script, *launch.training_script_args]
        words = [word for word in words if word not in ("--launcher", "pytorch")]
    assert words[0] == "vitdense", line
    return words[1:]


def run_words(words, here, twin, weights_of):
    prepare(words, here, twin, weights_of)
    if words[:1] == ["train"]:
        if "--resume" not in words:  # each line is a training of its own
            shutil.rmtree(here / "work_dirs" / Path(words[1]).stem, ignore_errors=True)
        train(words[1:])
    elif words[:1] == ["new"]:
        succeed([*words])
        (config,) = (word for word in words if word.endswith(".py"))
        twin(here / config, config)
    else:
        printed = succeed(words)
        assert words[:1] != ["test"] or re.search(r"mAP|mIoU|PQ", printed)
        if shown := SHOWN.get(shlex.join(["vitdense", *words])):
            assert printed.split() == shown.split()
        if "--as-dataset" in words:
            found = json.loads((here / words[-1] / "annotations.json").read_text())["annotations"]
            assert found
            assert {one["category_id"] for one in found} <= {7, 14}


def run_once():
    """Words of commands by page. What several pages have is run on the page with the most lines."""
    seen, found = [], {}
    for page in sorted(PAGES, key=lambda page: -len([*commands(page)])):
        for words in map(command_of, filter(is_run, commands(page))):
            if words not in seen:
                seen.append(words)
                found.setdefault(page, []).append([*words])
    return found


RUN = run_once()
# What blocks of one command print.
SHOWN = {one.text.strip(): after.text for one, after in pairwise(BLOCKS) if after.language == "text"}


# What takes a minute or more: benchmarks and exports.
SLOW = ["export.md", "performance.md"]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW)) for page in RUN]
)
def test_commands_run(page, here, twin, weights_of):
    for words in RUN[page]:
        run_words(words, here, twin, weights_of)


@pytest.mark.parametrize("block", CONFIGS, ids=str)
def test_configs_train(block, here, twin, monkeypatch):
    text = block.text
    if "checkpoint" not in text and "train.json" not in text:
        for name, small in TWINS.items():
            text = re.sub(rf'^(_base_ = ".*){name}\.py', rf"\1demo/{small}.py", text, flags=re.M)
    for module in (one for one in BLOCKS if one.page == block.page and one.is_module):
        (here / module.first.removeprefix("# ")).write_text(module.text)
        monkeypatch.syspath_prepend(here)  # `twin` reads the config as mmengine does
    path = here / "of_the_page.py"
    path.write_text(re.sub(r'^_base_ = "(?!\w+::)', f'_base_ = "{REPO}/configs/', text, flags=re.M))
    if is_run(text):
        train([twin(path, path.name)])
    else:
        with torch.device("meta"):
            build_model(load_config(path))


def test_commands_that_are_not_run_name_what_exists():
    """Also on slow pages: the tool has the flags; targets, extras and files exist."""
    lines = [line for page in PAGES for line in commands(page) if page.name in SLOW or not is_run(line)]
    every = [*lines, *(block.text for block in CONFIGS)]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in every)] == []
    makefile, project = ((REPO / name).read_text() for name in ("Makefile", "pyproject.toml"))
    for line in lines:
        words = shlex.split(line, comments=True)
        for word in words:
            if re.fullmatch(r"\w+/[\w/]+\.py|\w+\.txt", word):
                assert (REPO / word).is_file(), line
        for extra in (extra for found in re.findall(r"\[([\w,]+)\]'", line) for extra in found.split(",")):
            assert re.search(rf"^{extra} = \[", project, re.M), line
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), line
        elif words[0] not in ("git", "pip", "python"):
            command, *options = command_of(line)
            status, printed = run_command([command, *options[: command == "new"], "--help"])  # with the task
            assert status == 0, printed
            assert not {word for word in options if word.startswith("--") and word not in printed}, line
