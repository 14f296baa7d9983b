"""Write the table of docs/parity.md on shares of a step: eight images at once, accumulated, and on two processes.

It takes minutes. Models are small and have random weights; images are drawn.
"""

import argparse
import copy
import logging
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.dist import get_rank, get_world_size
from mmengine.registry import DATASETS, init_default_scope
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitdense.files import atomic_write, read_text
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import drop_weights
from zoo import REPO, filled, table

PAGE, HEADING = REPO / "docs/parity.md", "Shares of a step"
HEAD = "| model | 4 x the same 2 | 4 x 2 images | 2 processes x 4 | 2 processes, 4 x 1 | divides by |"
IMAGES = 8
SHARES = ((1, 4, 2), (1, 4, 8), (2, 1, 8), (2, 4, 8))  # processes, accumulated iterations, images of the eight
SAMPLES = "samples of an iteration and process"
OBJECTS = "objects of an iteration"
ROWS = {  # recipe: name, and what its losses divide by if not by images or pixels
    "cascade_swin_nano_shapes": ("Cascade Mask R-CNN", SAMPLES),
    "upernet_swin_nano_shapes": ("UPerNet", ""),
    "atss_swin_nano_shapes": ("ATSS", "positive samples of an iteration"),
    "rfdetr_nano_shapes": ("RF-DETR", OBJECTS),
    "rfdetr_seg_nano_shapes": ("RF-DETR Seg", OBJECTS),
    "rfdetr_keypoints_nano_figures": ("RF-DETR keypoints", OBJECTS),
    "lwdetr_t_coco": ("LW-DETR", OBJECTS),
    "eomt_nano_shapes": ("EoMT", OBJECTS),
    "pmt_deit_t_camvid": ("PMT", OBJECTS),
    "mask2former_swin_nano_shapes": ("Mask2Former", f"{OBJECTS}; class weights of an iteration and process"),
    "dino_swin_nano_shapes": ("DINO", f"{OBJECTS}; groups of noise, by the most objects of an image"),
}
NANO = {"embed_dims": 32, "depths": (2, 2, 2, 2), "num_heads": (2, 4, 8, 16)}  # of recipes that are not nano


def config(name: str, **options: Any) -> tuple[Config, Config]:
    """The config of a recipe on drawn data, with options of its trunk, and these data."""
    cfg = load_config(name)
    semantic = cfg.default_scope == "mmseg"
    data = load_config("upernet_swin_nano_shapes" if semantic else "cascade_swin_nano_shapes").train_dataloader.dataset
    if "eomt" in name or "keypoints" in name:
        data = cfg.train_dataloader.dataset
    if name.endswith("_t_coco") and "lwdetr" not in name:
        cfg.model.backbone.arch = NANO
        cfg.model.neck.in_channels = [32, 64, 128, 256]
    if "lwdetr" in name:
        cfg.model.data_preprocessor.batch_augments = None
    drop_weights(cfg.model)
    for part in (cfg.model.backbone, cfg.model.backbone.get("trunk", {})):
        if "drop_path_rate" in part:
            part.drop_path_rate = 0.0
    trunk = cfg.model.backbone.get("trunk", cfg.model.backbone)  # of a ViT-Adapter
    trunk.update({} if trunk.get("frozen_stages") == "all" else options)
    return cfg, data


def seed(number: int) -> None:
    for library in (random.seed, np.random.seed, torch.manual_seed):
        library(number)


def images(name: str, folder: str | Path, number: int, same: bool) -> list[dict]:
    """Drawn images of one size, each with objects; `same`: as many in each."""
    cfg, data = config(name)
    init_default_scope(cfg.default_scope)
    data.update(data_root=f"{folder}/shapes/", draw=dict(num_train=40, num_val=1, image_size=(128, 128)))
    seed(0)
    dataset = DATASETS.build(data)
    groups: dict[tuple, list[dict]] = {}
    for i in range(40):
        item = dataset[i]
        sample = item["data_samples"]
        objects = len(sample.gt_instances) if "gt_instances" in sample else 1
        if objects:
            groups.setdefault((same and objects, item["inputs"].shape), []).append(item)
    items = max(groups.values(), key=len)[:number]
    assert len(items) == number
    return items


def build(name: str, **options: Any) -> nn.Module:
    """The model of a recipe in training, without dropout, its batch norms with the statistics that they have."""
    cfg, _ = config(name, **options)
    init_default_scope(cfg.default_scope)
    seed(0)
    model = build_model(cfg)
    model.init_weights()
    model.train()
    for module in model.modules():
        if isinstance(module, (_BatchNorm, nn.Dropout, nn.Dropout2d)):
            module.eval()
    return model


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Points of masks and noise of boxes that do not depend on how many there are; samples of their number alone."""

    def rand(*size: Any, **options: Any) -> Tensor:
        size = size[0] if isinstance(size[0], (tuple, list, torch.Size)) else size
        drawn = np.random.default_rng(0).random([1, *size[1:]], np.float32)
        return torch.from_numpy(drawn).expand(*size).clone()

    def randint_like(x: Tensor, low: int, high: int, **options: Any) -> Tensor:
        return (rand(x.shape) * high).to(x.dtype).floor()

    def randperm(number: int, **options: Any) -> Tensor:
        return torch.from_numpy(np.random.default_rng(0).permutation(number))

    with (
        patch("torch.rand", rand),
        patch("torch.rand_like", lambda x: rand(x.shape)),
        patch("torch.randint_like", randint_like),
        patch("torch.randperm", randperm),
    ):
        yield


def backward(model: nn.Module, module: nn.Module, items: Sequence[dict]) -> Tensor:
    """The loss of images; `module` is the model itself, or what DDP wraps."""
    torch.manual_seed(1)
    data = module.data_preprocessor(pseudo_collate(copy.deepcopy(items)), True)
    loss, _ = module.parse_losses(model(**data, mode="loss"))
    loss.backward()
    return loss.detach()


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def step(name: str, folder: str, counts: int, different: int) -> tuple[Tensor, Tensor]:
    """Loss and gradients of the step of all processes, each with its share as the samplers give it."""
    items, model = images(name, folder, IMAGES, same=False)[:different] * (IMAGES // different), build(name)
    own = items[get_rank() :: get_world_size()]
    size = len(own) // counts
    with fixed_draws():
        loss = sum(backward(model, model, own[i : i + size]) for i in range(0, len(own), size))
    found = torch.cat([loss[None], gradients(model)]) / counts / get_world_size()
    if get_world_size() > 1:
        torch.distributed.all_reduce(found)
    return found[0], found[1:]


def compute(rank: int, processes: int, folder: str, names: Sequence[str]) -> None:
    """Save the steps of one of several processes."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if processes > 1:
        where = f"file://{folder}/rendezvous"
        torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=processes)
    for name in names:
        for number, counts, different in ((1, 1, 2), (1, 1, 8), *SHARES):
            if number == processes:
                found = step(name, f"{folder}/{name}", counts, different)
                torch.save(found, f"{folder}/{name}-{number}-{counts}-{different}-{rank}.pt")


def difference(name: str, folder: str, processes: int, counts: int, different: int) -> str:
    files = (f"{folder}/{name}-{n}-{count}-{different}-0.pt" for n, count in ((1, 1), (processes, counts)))
    (want_loss, want), (loss, found) = map(torch.load, files)
    return f"{abs(loss - want_loss) / want_loss:.0e}, {(found - want).norm() / want.norm():.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, help="print the rows of these recipes, and write nothing")
    args = parser.parse_args()
    names = args.only or [*ROWS]
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):  # the first draws the data
            torch.multiprocessing.spawn(compute, (processes, folder, names), nprocs=processes)
        rows = [
            (title, *(difference(name, folder, *share) for share in SHARES), divisor)
            for name, (title, divisor) in ROWS.items()
            if name in names
        ]
    print(table(HEAD, rows))
    if not args.only:
        with atomic_write(PAGE) as scratch:
            scratch.write_text(filled(read_text(PAGE), {HEADING: table(HEAD, rows)}), encoding="utf-8")


if __name__ == "__main__":
    main()
