"""Options that a backbone, a neck or a layer cannot have: refused by name."""

from functools import partial

import pytest
from conftest import HAS_RESEARCH
from contract_rows import MODELS, NANO, VIT

from vitdense import DeconvPyramid, Hiera, MViT, Swin, SwinV2, ViT, ViTAdapter

MVIT = {"embed_dims": 8, "depths": (1, 2, 3, 2), "num_heads": 2}
HIERA = MODELS["hiera"].arch
adapter = partial(ViTAdapter, conv_inplane=8, deform_num_heads=4)
TRUNK = {"arch": VIT, "pretrain_img_size": 64, "drop_path_rate": 0.0}


def of_sizes(kind, arch):
    return lambda **options: kind(**{"arch": arch, **options})


swin, swin_v2, mvit, vit = of_sizes(Swin, NANO), of_sizes(SwinV2, NANO), of_sizes(MViT, MVIT), of_sizes(ViT, VIT)
ROWS = [  # what is made, its options, what the error names, and its type where that is no ValueError
    (swin, {"arch": "huge"}, "tiny, small, base, large"),
    (swin, {"arch": {"embed_dims": 16, "depths": (2,)}}, "exactly embed_dims, depths, num_heads"),
    (swin, {"arch": {"embed_dims": 16, "depths": (2,), "num_heads": (3,)}}, "num_heads is 3, .* divides 16 channels"),
    (swin, {"arch": {"embed_dims": 16, "depths": (2, 2), "num_heads": (1,)}}, "same number of stages"),
    (swin, {"attention": "sliding"}, "attention", TypeError),
    (swin, {"finetune": {"type": "lora", "rank": 0}}, "rank=0"),
    (swin, {"finetune": {"type": "lora", "targets": ("query",)}}, "'query'; expected some of: qkv, proj, fc1, fc2"),
    (swin, {"finetune": {"type": "attention", "rank": 4}}, "expected None"),
    (swin, {"finetune": {"type": "lora", "r": 4}}, "with any of rank, alpha, targets"),
    (swin, {"finetune": {"rank": 4}}, "expected None"),
    (swin, {"finetune": "Lora"}, "expected None"),
    (swin_v2, {"arch": "nano"}, "tiny, small, base, large, huge, giant"),
    (swin_v2, {"arch": {"embed_dims": 16}}, "embed_dims, depths, num_heads and, if wanted, extra_norm_every"),
    (swin_v2, {"arch": {**NANO, "extra_norm": 6}}, "if wanted, extra_norm_every"),
    (swin_v2, {"arch": {**NANO, "extra_norm_every": -1}}, "extra_norm_every is -1"),
    (swin_v2, {"pretrained_window_sizes": -1}, r"pretrained_window_sizes\[0\]: got -1"),
    (swin_v2, {"pretrained_window_sizes": (8, 8)}, r"pretrained_window_sizes: got \(8, 8\), .* the 4 stages"),
    (swin_v2, {"pretrained_window_sizes": "8888"}, "pretrained_window_sizes: got '8888'"),
    (swin_v2, {"pretrained_window_sizes": 8.0}, "pretrained_window_sizes: got 8.0"),
    (swin_v2, {"pretrained_window_sizes": (8, 8, 8, -8)}, r"pretrained_window_sizes\[3\]: got -8"),
    (swin_v2, {"pretrained_window_sizes": (8, 8, 8, (8, 8, 8))}, r"pretrained_window_sizes\[3\]: got \(8, 8, 8\)"),
    (mvit, {"arch": "tiny"}, "got .tiny., expected one of v2_tiny, .*, v1_base_max or a dict of sizes"),
    (mvit, {"arch": {"embed_dims": 16}}, "exactly embed_dims, depths, num_heads and, if wanted, growth, pool"),
    (mvit, {"arch": {**MVIT, "num_heads": 3}}, "num_heads is 3, .* divides 8 channels"),
    (mvit, {"arch": {**MVIT, "num_heads": (1, 2, 4, 8)}}, r"num_heads is \(1, 2, 4, 8\)"),
    (mvit, {"arch": {**MVIT, "growth": "conv"}}, "growth: got 'conv', expected one of 'attention', 'mlp'"),
    (mvit, {"arch": {**MVIT, "pool": "avg"}}, "pool: got 'avg', expected one of 'conv', 'max'"),
    (mvit, {"window": "swin"}, "window: got 'swin', expected one of 'hybrid', 'global', 'window'"),
    (mvit, {"pretrain_img_size": 100}, r"pretrain_img_size: got \(100, 100\), expected multiples of 32"),
    (mvit, {"arch": {**MVIT, "depths": (1, 1)}, "pretrain_img_size": 24}, "expected multiples of 16"),
    (vit, {"out_norm": "last"}, "out_norm: got 'last', expected one of 'each', 'final', 'shared', 'none'"),
    (vit, {"out_norm": "final", "out_indices": (0, 1)}, "expected the last, 3"),
    (vit, {"global_indices": (4,), "window_size": 2}, r"global_indices: got \[4\], expected blocks from 0 to 3"),
    (vit, {"global_indices": (3,)}, "global_indices: it needs a window_size"),
    (vit, {"output_cls_token": True, "window_size": 2}, "output_cls_token: it needs global attention"),
    (vit, {"output_cls_token": True, "relative_position": True}, "output_cls_token: it needs global attention"),
    (vit, {"pretrain_img_size": 8}, "pretrain_img_size: got 8x8, expected at least one patch of 16"),
    (vit, {"finetune": "ffn"}, "finetune: got 'ffn', expected None .all., one of attention, mlp, lora"),
    (vit, {"finetune": "lora", "frozen_stages": "all"}, "finetune, frozen_stages"),
    (vit, {"finetune": "attention", "frozen_stages": "all"}, "finetune, frozen_stages"),
    (vit, {"arch": "deit_huge"}, "arch: "),
    (vit, {"arch": {**VIT, "num_heads": 5}}, "arch: "),
    (vit, {"arch": {**VIT, "depth": 0}}, "arch: "),
    (vit, {"arch": {**VIT, "patch_size": 0}}, "arch: "),
    (vit, {"arch": {"embed_dims": 32}}, "arch: "),
    (vit, {"arch": {**VIT, "rope": "eva"}}, "arch: rope: got 'eva'"),
    (vit, {"arch": {**VIT, "num_heads": 16, "rope": "eva02"}}, "heads of a multiple of 4"),
    (vit, {"arch": {**VIT, "rope": "eva02"}, "rope_augment": {"shift": 1}}, "rope_augment: got"),
    (vit, {"arch": {**VIT, "rope": "dinov3"}, "rope_augment": {"shfit": 1}}, "rope_augment: got"),
    (vit, {"rope_augment": {"shift": 1}}, "rope_augment: it needs"),
    (vit, {"arch": {**VIT, "rope": "dinov3"}, "relative_position": True}, "relative_position: "),
    (vit, {"arch": {**VIT, "ffn_dims": 8}, "mlp_ratio": 2.0}, "mlp_ratio: it needs"),
    (vit, {"arch": {**VIT, "qkv_bias": "key"}}, "arch: qkv_bias"),
    (vit, {"arch": {**VIT, "ffn": "gelu"}}, "arch: ffn"),
    (vit, {"arch": {**VIT, "position_rule": "timm"}}, "arch: position_rule"),
    (vit, {"class_token": False, "output_cls_token": True}, "output_cls_token"),
    (Hiera, {"arch": {**HIERA, "window_sizes": (4, 3, 4, 3)}}, "window_sizes"),
    (Hiera, {"arch": {**HIERA, "window_sizes": (4, 2, 4)}}, "window_sizes"),
    (Hiera, {"arch": {**HIERA, "global_indices": (7,)}}, "global_indices"),
    (Hiera, {"arch": {**HIERA, "position_grid": 3}}, "position_grid"),
    (adapter, {"trunk": {**TRUNK, "type": "mmpretrain.VisionTransformer"}}, "trunk: got type"),
    (adapter, {"trunk": {**TRUNK, "out_norm": "each"}}, "out_norm"),
    (adapter, {"trunk": {**TRUNK, "out_indices": (0, 2)}}, "out_indices"),
    (adapter, {"trunk": {**TRUNK, "output_cls_token": True}}, "output_cls_token"),
    (adapter, {"trunk": TRUNK, "deform_num_heads": 3}, "3 heads"),
    (adapter, {"trunk": TRUNK, "deform_num_heads": 32, "deform_ratio": 0.5}, "32 heads"),
    (adapter, {"trunk": TRUNK, "vit_feature": None}, "vit_feature"),
    (adapter, {"trunk": {**TRUNK, "out_indices": (1, 3)}, "vit_feature": "each"}, "vit_feature"),
    (adapter, {"trunk": {**TRUNK, "window_padding": "qkv"}}, "window_padding"),
    (adapter, {"trunk": {**TRUNK, "window_size": 2, "window_padding": "zeros"}}, "window_padding"),
    (adapter, {"trunk": {**TRUNK, "window_size": [2, 2, 2, 2]}}, "window_size"),  # the authors' list by block
    (DeconvPyramid, {"in_channels": [32, 32]}, "expected numbers above 0, in_channels one, or four"),
    (DeconvPyramid, {"in_channels": [32, 32, 32, 64]}, "one, or four that are the same"),
    (DeconvPyramid, {"in_channels": 0}, "got 0, None; expected numbers above 0"),
    (DeconvPyramid, {"in_channels": [32.0] * 4}, "expected numbers above 0"),
    (DeconvPyramid, {"in_channels": 32, "out_channels": 0}, "got 32, 0; expected numbers above 0"),
    (DeconvPyramid, {"in_channels": 30}, "multiple of 4"),
    (DeconvPyramid, {"in_channels": 32, "design": "fpn"}, "design: got .fpn., expected one of"),
    (DeconvPyramid, {"in_channels": 32, "num_outs": 5}, "num_outs: got 5, expected 4"),
    (DeconvPyramid, {"in_channels": 32, "num_outs": 3}, "num_outs: got 3"),
]
if HAS_RESEARCH:
    from research_rows import REFUSED

    ROWS += REFUSED


@pytest.mark.parametrize(("make", "options", "named", "error"), [(*row, ValueError)[:4] for row in ROWS])
def test_refused(make, options, named, error):
    with pytest.raises(error, match=named):
        make(**options)
