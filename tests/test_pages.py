"""What the pages show runs: every command, `--cfg-options` line and config of README and docs, on small twins.

A twin is the recipe itself with images of 64 pixels, small heads and a length of one or two iterations, with
validation. The commands of a page run in order, in a folder with small data in the layout of COCO, ADE20K and others.
"""

import json
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPO
from PIL import Image
from test_docs import BLOCKS, CONFIGS, PAGES
from torch.distributed.run import parse_args as torchrun_arguments

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope

import vitdense
from vitdense.mm import precision
from vitdense.mm.config.build import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import leaf_datasets, nodes
from vitdense.models.registry import find_model

pytestmark = [pytest.mark.docs, pytest.mark.slow]

SIDE = 64  # of the images of twins, in pixels
# Sizes on which no other part of a model depends, and their upper limits.
LIMITS = {
    **{"num_layers": 2, "num_queries": 20, "nms_pre": 100, "max_per_img": 20, "fc_out_channels": 64, "num": 64},
    **{"num_points": 256, "num_dn_queries": 10},
}
# In place of large recipes: the same model, small in every part.
TWINS = {"cascade_swin_t_coco": "cascade_swin_nano_coco", "mask_rcnn_swin_t_coco": "cascade_swin_nano_coco"}
# Words of the pages, and what stands for them here.
WORDS = {
    "/path/to/coco": "data/coco",
    "/path/to/camvid": "data/camvid",
    "/path/to/photos": "photos",
    "/path/to/imagenet": "data/imagenet",
    "/path/to/ADEChallengeData2016": "data/ade/ADEChallengeData2016",
    "--image-size 640": f"--image-size {SIDE + 32}",
    "--batch-size 4": "--batch-size 2",
    "--shape 800 1344": "--shape 64 96",
    "--shape 768 1280": "--shape 64 96",
    "--shape 1024 1024": "--shape 64 64",
    "--shape 512 512": "--shape 64 64",
    "--rounds 7": "--rounds 1",
    "--rounds 20": "--rounds 1",
    "--steps 60": "--steps 2",
    "photo.jpg": "photos/0.jpg",
}
# Commands that are not run here, by a pattern, and why.
NOT_RUN = {
    r"^pip install": "installs; .ci/run does it",
    r"^make ": "targets are the tests themselves, or the demo",
    r"^python -m pytest": "a test of its own",
    r"vitdense ops ": "changes the environment; tests/mm/ops/test_environment.py",
    r"--device cuda": "needs a GPU",
    r"--deploy": "takes minutes; tests/scripts/test_deploy.py",
    r"--shard": "needs several processes; tests/mm/train/test_shard.py",
    r"distill_deit_s": "its teacher has 84 M parameters; tests/research/pretraining/test_classifier.py",
    r"tools/convert\.py dinov3_vits16_pretrain": "the file is behind a form; tests/tools/test_convert_tool.py",
    r"tools/convert\.py (swin_tiny|mine\.pth) .*--verify": "downloads; tests/tools/test_convert_tool.py",
    r"htcpp_swin_l": "283 M parameters",
    r"(mae_vit_b|simmim_swin_b)": "86 M parameters in batches of 512; tests/research/pretraining/test_masked.py",
    r"--replay": "needs a step that was refused; tests/mm/train/test_guards.py",
    r"--log-to.* wandb": "needs an account; tests/mm/train/test_wandb_backend.py",
}


# Small data


def draw(folder, split, count=4, boxes=True):
    """Images with two squares each; yields their names, and the squares as (x, y, side)."""
    random = np.random.default_rng(0)
    (folder / split).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        pixels = random.integers(0, 60, (72, 96, 3), dtype=np.uint8)
        squares = [(6 + 3 * i, 8, 30), (50, 30 - 2 * i, 36)]
        for channel, (x, y, side) in enumerate(squares):
            pixels[y : y + side, x : x + side, channel] = 230
        Image.fromarray(pixels).save(folder / split / f"{i}.jpg")
        yield f"{i}.jpg", squares


def coco(folder, split, file, categories):
    """Instances of the first two categories in COCO format."""
    content = {"images": [], "annotations": [], "categories": [{"id": i, "name": n} for i, n in categories]}
    for i, (name, squares) in enumerate(draw(folder, split), 1):
        content["images"].append({"id": i, "file_name": name, "width": 96, "height": 72})
        for (x, y, side), (category, _) in zip(squares, categories):
            outline = [x, y, x + side, y, x + side, y + side, x, y + side]
            box = {"bbox": [x, y, side, side], "area": side * side, "iscrowd": 0, "segmentation": [outline]}
            number = len(content["annotations"]) + 1
            content["annotations"].append({"id": number, "image_id": i, "category_id": category, **box})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def panoptic(folder, split, file, segments, categories):
    """Segments of the squares, and of the ground around them, in COCO's panoptic format."""
    listed = [{"id": i, "name": name, "isthing": int(thing)} for i, name, thing in categories]
    content = {"images": [], "annotations": [], "categories": listed}
    segments.mkdir(parents=True)
    things, ground = [i for i, _, thing in categories if thing], next(i for i, _, thing in categories if not thing)
    for i, (name, squares) in enumerate(draw(folder, split), 1):
        codes = np.full((72, 96, 3), (3, 0, 0), np.uint8)
        for number, (x, y, side) in enumerate(squares, 1):
            codes[y : y + side, x : x + side, 0] = number
        Image.fromarray(codes).save(segments / f"{Path(name).stem}.png")
        found = [{"id": n, "category_id": c, "iscrowd": 0} for n, c in zip((1, 2, 3), (*things[:2], ground))]
        for segment in found:
            rows, columns = np.nonzero(codes[..., 0] == segment["id"])
            x, y = int(columns.min()), int(rows.min())
            segment |= {"area": len(rows), "bbox": [x, y, int(columns.max()) - x + 1, int(rows.max()) - y + 1]}
        content["images"].append({"id": i, "file_name": name, "width": 96, "height": 72})
        content["annotations"].append({"image_id": i, "file_name": f"{i - 1}.png", "segments_info": found})
    file.write_text(json.dumps(content))


def label_maps(folder, images, labels, values):
    (folder / labels).mkdir(parents=True)
    for name, squares in draw(folder, images):
        codes = np.full((72, 96), values[0], np.uint8)
        for value, (x, y, side) in zip(values[1:], squares):
            codes[y : y + side, x : x + side] = value
        Image.fromarray(codes).save(folder / labels / f"{Path(name).stem}.png")


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A folder with the data that the pages name."""
    from mmdet.datasets import CocoDataset, CocoPanopticDataset

    root = tmp_path_factory.mktemp("pages")
    data = root / "data/coco"
    names = [(i, name) for i, name in enumerate(CocoDataset.METAINFO["classes"], 1)]
    meta = CocoPanopticDataset.METAINFO
    parts = [(i, name, name in meta["thing_classes"]) for i, name in enumerate(meta["classes"], 1)]
    for split in ("train", "val"):
        coco(data, f"{split}2017", data / f"annotations/instances_{split}2017.json", names)
        segments = data / f"annotations/panoptic_{split}2017"
        panoptic(data, f"{split}2017", data / f"annotations/panoptic_{split}2017.json", segments, parts)
        label_maps(root / "data/camvid", f"images/{split}", f"annotations/{split}", (0, 3, 8))
        other = {"train": "training", "val": "validation"}[split]
        label_maps(root / "data/ade/ADEChallengeData2016", f"images/{other}", f"annotations/{other}", (1, 4, 13))
        for label in ("ant", "bee"):
            list(draw(root / "data/imagenet", f"{split}/{label}"))
        coco(root / "pets", "images", root / f"pets/{split}.json", [(1, "cat"), (2, "dog")])
        label_maps(root / "streets", f"images/{split}", f"labels/{split}", (0, 1, 2))
        streets = [(1, "car", True), (2, "person", True), (3, "road", False)]
        panoptic(
            root / "streets", "images", root / f"streets/{split}.json", root / f"streets/segments/{split}", streets
        )
        yolo = root / f"birds/labels/{split}"
        yolo.mkdir(parents=True)
        for name, squares in draw(root / "birds", f"images/{split}"):
            lines = (
                f"{i} {(x + s / 2) / 96} {(y + s / 2) / 72} {s / 96} {s / 72}" for i, (x, y, s) in enumerate(squares)
            )
            (yolo / f"{Path(name).stem}.txt").write_text("\n".join(lines))
    (root / "birds/data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [owl, wren]\n")
    for file in (root / "streets/segments").glob("*/*.png"):
        shutil.copy(file, root / "streets/segments")
    for folder in ("photos", "more_photos"):
        list(draw(root, folder, 2))
    return root


# Twins


WEIGHTS = {}  # files, by the names of models


def weights_of(name):
    """In place of a download: a file of a published model, with other weights."""
    if name not in WEIGHTS:
        file = tempfile.NamedTemporaryFile(suffix=".pth")  # noqa: SIM115 -- kept with the process
        torch.save(vitdense.create(name).state_dict(), file.name)
        WEIGHTS[name] = file
    return WEIGHTS[name].name


def shrink(cfg):
    """A small twin of a config, in place."""
    for node in nodes(cfg.model):
        for key, limit in LIMITS.items():
            if isinstance(node.get(key), int):
                node[key] = min(node[key], limit)
        if checkpoint := (node.get("init_cfg") or {}).get("checkpoint"):
            node["init_cfg"] = (
                {**node["init_cfg"], "checkpoint": weights_of(checkpoint)} if find_model(checkpoint) else None
            )
    for split in ("train", "val", "test"):
        if loader := cfg.get(f"{split}_dataloader"):
            for dataset in leaf_datasets(loader.dataset):
                if "Shapes" in dataset.type:
                    dataset.update(data_root="drawn/", draw=dict(num_train=4, num_val=4, image_size=(96, 96)))
            loader.update(batch_size=min(loader.batch_size, 2), num_workers=0, persistent_workers=False)
    length = {"max_iters": 2} if "max_iters" in cfg.train_cfg else {"max_epochs": 1}
    steps = [str(step.get("type")) for step in nodes(cfg.get("val_dataloader"))]
    size = {"image_size": SIDE} if any("Pack" in kind for kind in steps) else {}
    if "://" in str(cfg.get("load_from")):
        cfg.load_from = None
    cfg.settings = {**cfg.get("settings", {}), **length, **size}
    return cfg


def write(cfg, path):
    path.parent.mkdir(exist_ok=True)
    lines = (f"{key} = {value!r}\n" for key, value in cfg.to_dict().items())
    path.write_text("".join(lines), encoding="utf-8")  # mmengine's own `dump` formats, which takes seconds


def trained(config, folder):
    """A work folder as a training of a config leaves it, with random weights."""
    cfg = load_config(config)
    folder.mkdir(parents=True)
    write(cfg, folder / config.name)
    dataset = cfg.test_dataloader.dataset
    from mmengine.registry import DATASETS

    with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
        meta = registry.build(dataset).metainfo
    state = build_model(cfg).state_dict()
    torch.save({"state_dict": state, "meta": {"dataset_meta": meta, "iter": 1, "epoch": 1}}, folder / "epoch_36.pth")
    (folder / "last_checkpoint").write_text("epoch_36.pth")


@pytest.fixture
def here(small_data, tmp_path, monkeypatch):
    """An empty folder with the small data, which is the current one."""
    for path in small_data.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: True)  # others emulate it, slowly
    return tmp_path


def run(words, monkeypatch, capfd):
    """A tool or sub-command in this process: what it printed."""
    for kind in (DefaultScope, MMLogger):
        monkeypatch.setattr(kind, "_instance_dict", {})
    capfd.readouterr()
    status = 0
    try:
        if words[0] == "vitdense":
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_module("vitdense", run_name="__main__")
        else:
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(str(REPO / words[0]), run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    printed = "".join(capfd.readouterr())
    said = "\n".join(re.findall(r"(?m)^(?:error:|.*WARNING).*", printed)) or printed[-2000:]
    assert status == 0, f"{shlex.join(words)}: {said}"
    return printed


def assert_trained(words, printed, here):
    """A checkpoint, and a metric for each task."""
    assert re.search(r"(Epoch|Iter)\(train\)", printed), printed[-2000:]
    if not re.search("research/(masked|mae|simmim)|val_cfg=None", shlex.join(words)):  # without a validation
        assert re.search(r"(Epoch|Iter)\(val\)", printed), printed[-2000:]


# Commands


def commands(page):
    for block in BLOCKS:
        if block.language == "bash" and block.page == page:
            for line in block.text.replace("\\\n", " ").splitlines():
                line = re.sub(r" +", " ", line).strip()
                if shlex.split(line, comments=True):
                    yield line


def reason(line):
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), None)


# Pages and blocks whose twins here do not run to their end yet: what is to be done, not what cannot be run.
TO_DO = {
    *("README.md", "attention-in-cnns.md", "comfort.md", "export.md", "finetune.md", "many-gpus.md", "mixers.md"),
    *("plain-vit-segmentation.md", "segmentation.md", "troubleshooting.md", "watch-training.md", "weights.md"),
    *("your-data.md", "detectors.md:60", "plain-vit-segmentation.md:54", "pretraining.md:121"),
}
TO_DO |= {block for block in map(str, CONFIGS) if block > "variants.md:32"}  # never run


def runs(name):
    return [pytest.mark.xfail(reason="not seen to run to its end")] if name in TO_DO else []


PAGES_WITH_COMMANDS = [page for page in PAGES if any(not reason(line) for line in commands(page))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=runs(page.name)) for page in PAGES_WITH_COMMANDS]
)
def test_commands_run(page, here, monkeypatch, capfd):
    for line in commands(page):
        if reason(line) is None:
            run_line(line, here, monkeypatch, capfd)


def run_line(line, here, monkeypatch, capfd):
    for old, new in WORDS.items():
        line = line.replace(old, new)
    line = re.sub(r"--amp\b(?! bfloat16)", "--amp bfloat16", line)
    words = shlex.split(line, comments=True)
    tool = next((i for i, word in enumerate(words) if re.fullmatch(r"tools/\w+\.py", word)), None)
    if words[:3] == ["python", "-m", "vitdense"]:
        words = words[2:]
    else:
        launcher, words = words[:tool], words[tool:]
        if "torchrun" in launcher:  # one process stands for all; tests/tools/test_processes.py starts several
            launch = torchrun_arguments([*launcher[launcher.index("torchrun") + 1 :], *words])
            assert [launch.training_script, *launch.training_script_args] == words
            words = [word for word in words if word not in ("--launcher", "pytorch")]
    name = Path(words[0]).stem
    if name in ("flops", "benchmark", "plot", "convert") or words == ["vitdense"]:
        prepare_others(name, words, monkeypatch, capfd, here)
    else:
        prepare(name, words, here)
    if words[1:2] == ["new"]:
        words += ["--no-estimate"]
    printed = run(words, monkeypatch, capfd)
    if name == "train":
        assert_trained(words, printed, here)
    elif name == "test":
        assert re.search(r"mAP|mIoU|PQ", printed)
    elif words[1:2] == ["new"]:
        (config,) = (word for word in words if word.endswith(".py"))
        write(shrink(Config.fromfile(config)), here / config)


def recipe(name):
    return next(path.relative_to(REPO) for path in REPO.glob(f"configs/**/{name}.py"))


def twin(config, here):
    """The twin of a recipe that a command names, at the same place."""
    path = here / config
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        stem = Path(config).stem
        write(shrink(Config.fromfile(REPO / recipe(TWINS.get(stem, stem)))), path)
    return path


def prepare(name, words, here):
    """The files that a command names."""
    configs = [word for word in words[1:] if re.fullmatch(r"configs/[\w/]+\.py", word)]
    for config in configs:
        twin(config, here)
    if "my_config.py" in words:
        (here / "my_config.py").write_text('_base_ = "mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py"\n')
    if name == "train":
        folder = here / "work_dirs" / Path(words[1]).stem
        if "--resume" not in words:  # each line is a training of its own
            shutil.rmtree(folder, ignore_errors=True)
        if "load_from=detector.pth" in words and not (here / "detector.pth").exists():
            trained(here / words[1], here / "detector")
            shutil.copy(here / "detector/epoch_36.pth", here / "detector.pth")
        return
    for i, word in enumerate(words[1:], 1):
        if re.fullmatch(r"work_dirs/\w+", word) and not (here / word).exists():
            stem = Path(word).name
            own = [path for path in (here / f"{stem}.py",) if path.exists()]
            trained(own[0] if own else twin(recipe(stem), here), here / word)
        elif word in ("CHECKPOINT", "epoch_36.pth", "iter_160000.pth"):
            folder = here / "trained" / Path(words[1]).stem
            if not folder.exists():
                trained(here / words[1], folder)
            words[i] = str(folder / "epoch_36.pth")


def prepare_others(name, words, monkeypatch, capfd, here):
    """The files that a command on work folders or weights names."""
    for i, word in enumerate(words[1:], 1):
        if re.fullmatch(r"configs/[\w/]+\.py", word):
            twin(word, here)
        elif name == "plot" and re.fullmatch(r"work_dirs/\w+", word) and not (here / word).exists():
            config = twin(recipe(Path(word).name), here)
            run(["tools/train.py", str(config), "--epochs", "1"], monkeypatch, capfd)
        elif name == "convert" and i == 1:
            if find_model(word):
                words[i] = weights_of(word)
            else:
                base = twin("configs/cascade_swin_t_coco.py", here)
                own = here / f"{Path(word).parent.name}.py"
                own.write_text(
                    f'_base_ = "{base}"\n' + "model = dict(backbone=dict(finetune='lora'))\n" * ("lora" in word)
                )
                trained(own, here / Path(word).parent)


# Configs


@pytest.mark.parametrize("block", [pytest.param(block, id=str(block), marks=runs(str(block))) for block in CONFIGS])
def test_configs_train(block, here, monkeypatch, capfd):
    path = here / "of_the_page.py"
    text = block.text
    for name, small in TWINS.items():
        if "checkpoint" not in text and "train.json" not in text:
            text = re.sub(rf'^(_base_ = ".*){name}\.py', rf"\1demo/{small}.py", text, flags=re.M)
    path.write_text(re.sub(r'^_base_ = "(?!\w+::)', f'_base_ = "{REPO}/configs/', text, flags=re.M))
    write(shrink(Config.fromfile(path)), path)
    printed = run(["tools/train.py", str(path)], monkeypatch, capfd)
    assert_trained([], printed, here)
