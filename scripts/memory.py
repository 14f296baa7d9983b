"""Memory of a GPU in training with `--shard`, counted on the meta device: the table of docs/extensions/shard.md."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from cost import count_pass
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import drop_weights
from vitdense.models.base import Backbone

PROCESSES = (1, 4, 32)
FLOAT32 = 4  # bytes of an element of a parameter, a gradient and each of the two states of AdamW
GB = 1e9


class Case(NamedTuple):
    """A model to train: a recipe, what is changed in it, and an image."""

    name: str
    recipe: str
    options: dict
    image: tuple[int, int]  # pixels


HUGE = {"_delete_": True, "embed_dims": 1280, "depth": 32, "num_heads": 16}
GIANT = {"model.backbone.arch": "dinov3_7b", "model.backbone.out_indices": [39], "model.decode_head.in_channels": 4096}
CASES = (
    Case("HTC++, Swin-L", "htcpp_swin_l_coco", {}, (1024, 1024)),
    Case(
        "Cascade Mask R-CNN, ViTDet-H",
        "cascade_vit_b_coco",
        {"model.backbone.arch": HUGE, "model.backbone.out_indices": [31], "model.neck.in_channels": 1280},
        (1024, 1024),
    ),
    Case("linear head, DINOv3-7B", "linear_dinov3_s_ade20k", {**GIANT, "model.backbone.frozen_stages": -1}, (512, 512)),
    Case("the same, trunk frozen", "linear_dinov3_s_ade20k", GIANT, (512, 512)),
)


def build(case: Case, with_cp: bool) -> nn.Module:
    """The model, without values."""
    cfg = load_config(case.recipe)
    drop_weights(cfg.model)
    cfg.merge_from_dict({**case.options, "model.backbone.with_cp": with_cp})
    with torch.device("meta"):
        return build_model(cfg)


def state_bytes(model: nn.Module, processes: int) -> float:
    """Bytes of parameters, gradients and optimizer states in a process.

    It has its part of all, and whole, while they are needed, parameters and gradients of the largest block and of what
    is in no block; see `vitdense.extensions.shard.shard.shard`.
    """
    sizes = {p: FLOAT32 * p.numel() * (4 if p.requires_grad else 1) for p in model.parameters()}
    if processes == 1:
        return sum(sizes.values())
    whole = {p: FLOAT32 * p.numel() * (2 if p.requires_grad else 1) for p in sizes}
    blocks = [
        set(block.parameters())
        for backbone in model.modules()
        if isinstance(backbone, Backbone)
        for block, *_ in backbone.layers()[1:]
    ]
    of_blocks = set().union(*blocks)
    gathered = max(sum(whole[p] for p in block) for block in blocks)
    return sum(sizes.values()) / processes + gathered + sum(x for p, x in whole.items() if p not in of_blocks)


def kept_bytes(case: Case, with_cp: bool) -> int:
    """Bytes that backbone and neck keep of an image for the backward pass, in half precision."""
    model = build(case, with_cp)
    if not any(p.requires_grad for p in model.backbone.parameters()):
        return 0
    return count_pass(model, torch.empty(1, 3, *case.image, device="meta"), model.extract_feat, train=True).kept


def rows() -> Iterator[str]:
    """Lines of the table."""
    processes = ", ".join(map(str, PROCESSES))
    yield f"| model, image | parameters | {processes} GPUs: GB each | kept of an image, with_cp: GB |"
    yield "|---|---:|---:|---:|"
    for case in CASES:
        model = build(case, with_cp=False)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        states = ", ".join(f"{state_bytes(model, n) / GB:.1f}" for n in PROCESSES)
        kept = ", ".join(f"{kept_bytes(case, with_cp) / GB:.2f}" for with_cp in (False, True))
        yield f"| {case.name}, {'x'.join(map(str, case.image))} | {millions:,.0f} M | {states} | {kept} |"


if __name__ == "__main__":
    for line in rows():
        print(line, flush=True)
