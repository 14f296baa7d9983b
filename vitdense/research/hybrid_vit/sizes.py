"""The ResNets of hybrid ViTs, and the published weights."""

from dataclasses import replace

from vitdense.families import HALF, Model
from vitdense.models.vit.sizes import timm_vit

# Blocks of every stage: a ResNet-50 as it is, one with the blocks of stage 4 moved into stage 3, and a ResNet-26 ("How
# to train your ViT?").
RESNETS = {"r50_s32": (3, 4, 6, 3), "r50_s16": (3, 4, 9), "r26_s32": (2, 2, 2, 2)}


def rows() -> list[Model]:
    """Sizes of ViT, and of "How to train your ViT?"."""
    augreg = (("augreg_in21k", 224), ("augreg_in21k_ft_in1k", 224), ("augreg_in21k_ft_in1k", 384))
    rows = []
    for size, stem, weights in (
        ("base", "r50_s16", (("orig_in21k", 224), ("orig_in21k_ft_in1k", 384))),
        ("small", "r26_s32", augreg),
        ("large", "r50_s32", augreg),
    ):
        options = {"arch": f"vit_{size}", "family": "HybridViT", "stats": HALF, "stem": stem}
        found = [timm_vit(f"vit_{size}_{stem}", *each, **options) for each in weights]
        rows += [replace(row, patch_size=int(stem[-2:])) for row in found]
    return rows
