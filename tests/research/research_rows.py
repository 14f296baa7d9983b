"""The backbones of research in the contract of all backbones, and options that they cannot have."""

from functools import partial

from contract_rows import DEEP, GRID, HALF_STREAM, NANO, STAGES, VIT, Precision, Row
from torch import nn

from vitdense import (
    NAT,
    SASA,
    CaiT,
    HybridViT,
    Mixer,
    NonLocalResNet,
    ParallelViT,
    PerformerSwin,
    PositionSwin,
    PositionViT,
    ResNet,
    SlidingSwin,
    StemViT,
    SwinMixer,
)
from vitdense.research.htcpp.global_block import GlobalBlock
from vitdense.research.nat.local import LocalAttention
from vitdense.research.non_local.attention import NonLocal
from vitdense.research.reppoints_v2.bifpn import BiFPN


def with_drawn_gates(model):
    """New gates of gMLP mix nothing."""
    for name, module in model.named_modules():
        if name.endswith(".linear_tokens"):
            nn.init.normal_(module.weight, std=0.02)
    return model


def with_random_batch_norms(model):
    """At their initial zero, the last norms of a ResNet's branches and attention layers make all the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        if isinstance(module, nn.BatchNorm2d) or type(module).__name__ == "Gamma":
            nn.init.normal_(module.weight, 0.5, 0.2)
    return model


MIXER, SCALED = {"embed_dims": 32, "depth": 4}, {**VIT, "layer_scale": 0.5}
RESNET = {"embed_dims": 16, "depths": (1, 1, 2, 1)}
WIDE = {"pretrain_img_size": (64, 96)}
vit, mixer = partial(Row, eps=1e-6), partial(Row, Mixer, eps=1e-6, parts=())
RESEARCH = {
    "nat": Row(NAT, {**NANO, "mlp_ratio": 3.0}),
    "nat, LayerScale": Row(NAT, {**NANO, "mlp_ratio": 2.0, "layer_scale": 0.5}, {"kernel_size": 3}),
    "swin, positions alone": Row(PositionSwin, NANO, {"window_size": 4}),
    "swin, Performer": Row(PerformerSwin, NANO),
    "swin, sliding": Row(SlidingSwin, NANO),
    "vit, distilled, parallel, hMLP, LayerScale": vit(
        ParallelViT, {**SCALED, "distilled": True}, {"pretrain_img_size": 48, "stem": "hmlp", "parallel": 2}
    ),
    "vit, hMLP with LN, constant drop path": vit(
        StemViT, {**VIT, "token_position": False, "constant_drop_path": True}, {**GRID, "stem": "hmlp_ln"}
    ),
    "vit, 4 parallel branches": vit(ParallelViT, SCALED, {**GRID, "parallel": 4}),
    "vit, 2-D positions": vit(PositionViT, VIT, {**GRID, "position": "2d"}),
    "vit, ResNet as stem": vit(HybridViT, VIT, {**GRID, "stem": "r26_s32"}),
    "vit, talking heads and class attention": vit(CaiT, {**SCALED, "class_blocks": 1}, GRID),
    "vit, conv stem": vit(StemViT, VIT, {**GRID, "stem": "conv"}),
    # An odd window: the zeros of a shift are one more to the left and top than its half.
    "swin_mixer": Row(SwinMixer, NANO, {"window_size": 7}, parts=("mlp",)),
    "swin_mixer, window 4x6": Row(SwinMixer, NANO, {"window_size": (4, 6)}, parts=("mlp",)),
    # Their grid is 4x6 tokens of 16 pixels, so that 72x104 pixels pad to four windows.
    "mixer, windows": mixer(MIXER, WIDE),
    "mixer, resize": mixer(MIXER, {**WIDE, "transfer": "resize"}),
    "mixer, ResMLP": mixer({**MIXER, "block": "resmlp", "layer_scale": 0.5}, WIDE),
    "mixer, gMLP": mixer({**MIXER, "block": "gmlp"}, WIDE, prepare=with_drawn_gates),
    "resnet": Row(ResNet, RESNET, {"norm_eval": False}, prepare=with_random_batch_norms, parts=()),
    "resnet, non-local": Row(
        NonLocalResNet,
        RESNET,
        {"attention": {"kind": "nonlocal", "after": ((1, 0), (2, 0)), "pool": "after"}, "norm_eval": False},
        prepare=with_random_batch_norms,
        parts=("attention",),
    ),
    "resnet, SAGAN": Row(
        NonLocalResNet,
        {**RESNET, "bottleneck": False},
        {"attention": {"kind": "sagan", "after": ((2, 1), (3, 0))}, "norm_eval": False},
        prepare=with_random_batch_norms,
        parts=("attention",),
    ),
    "sasa resnet": Row(
        SASA,
        {**RESNET, "depths": (1, 1, 1, 1), "local_stages": (0, 2), "num_heads": 4, "kernel": 5},
        {"norm_eval": False},
        prepare=with_random_batch_norms,
        parts=("attention",),
    ),
}
PRECISION = {
    "nat": Precision(NAT, {**STAGES, "mlp_ratio": 2.0}, {}, None, (64, 64)),
    "vit, parallel": Precision(ParallelViT, {**DEEP, "layer_scale": 0.5}, {**GRID, "parallel": 2}),
    "mixer": Precision(Mixer, {"embed_dims": 48, "depth": 24}, GRID),
    "mixer, ResMLP": Precision(Mixer, {"embed_dims": 48, "depth": 24, "block": "resmlp", "layer_scale": 0.5}, GRID),
    "mixer, gMLP": Precision(Mixer, {"embed_dims": 48, "depth": 24, "block": "gmlp"}, GRID),
    # timm's CaiT wants the weights of class attention, which ours has with `output_cls_token` only.
    "vit, CaiT": Precision(CaiT, {**DEEP, "layer_scale": 0.5}, GRID, None),
    "vit, 2-D positions": Precision(PositionViT, DEEP, {**GRID, "position": "2d"}, None),
    "swin_mixer": Precision(SwinMixer, STAGES, {"window_size": 2}, None, (64, 64), HALF_STREAM),
    "swin, Performer": Precision(PerformerSwin, STAGES, {}, None, (64, 64), HALF_STREAM),
    "resnet": Precision(ResNet, {"embed_dims": 64, "depths": (1, 1, 3, 1)}, {}, "torchvision", (64, 64)),
    "resnet, SAGAN": Precision(
        NonLocalResNet,
        {"embed_dims": 16, "depths": (1, 1, 6, 1)},
        {"attention": {"kind": "sagan", "after": ((2, 1), (2, 3))}},
        None,
        (64, 64),
    ),
}
CAIT, SMALL_MIXER = {**VIT, "depth": 3, "layer_scale": 0.5}, {"embed_dims": 16, "depth": 4}
SMALL = {"embed_dims": 16, "depths": (1,), "num_heads": (1,)}
SHORT = {"embed_dims": 8, "depths": (2, 2), "num_heads": (2, 4)}
local = partial(LocalAttention, dim=8, kernel=3)
non_local = partial(NonLocalResNet, {"embed_dims": 16, "depths": (1, 2, 3, 1)})
REFUSED = [  # see models/test_refused.py
    (ResNet, {"arch": "resnet51"}, "resnet50"),
    (ResNet, {"finetune": "lora"}, "no linear layer"),
    (ResNet, {"arch": {"embed_dims": 16, "depths": (0, 1)}}, "depths"),
    (BiFPN, {"in_channels": [8, 16], "out_channels": 48}, "out_channels"),
    (BiFPN, {"in_channels": [8, 16], "out_channels": 32, "num_outs": 1}, "num_outs"),
    (partial(CaiT, CAIT), {"relative_position": True}, "relative_position, rope: "),
    (CaiT, {"arch": {**CAIT, "rope": "dinov3"}}, "relative_position, rope: "),
    (partial(CaiT, CAIT), {"output_cls_token": True}, r"out_indices \(0, 1, 2\), expected \(2,\)"),
    (CaiT, {"arch": {**CAIT, "distilled": True}}, "arch: distilled and registers need a class_token"),
    (GlobalBlock, {"in_channels": (64, 100), "num_heads": 3}, "num_heads"),
    (partial(HybridViT, VIT), {"stem": "r101"}, "stem: got 'r101'"),
    (local, {"num_heads": 2, "kernel": 4}, "kernel: got 4"),
    (local, {"num_heads": 2, "kernel": 7.0}, "kernel: got 7.0"),
    (local, {"num_heads": 2, "border": "wrap"}, "border: got 'wrap'"),
    (local, {"num_heads": 2, "position": "absolute"}, "position: got 'absolute'"),
    (local, {"num_heads": 3}, "num_heads: got 3"),
    (local, {"num_heads": 8, "position": "query"}, "num_heads: got 8"),
    (partial(Mixer, SMALL_MIXER), {"transfer": "crop"}, "transfer: got 'crop', expected one of 'windows', 'resize'"),
    (partial(Mixer, SMALL_MIXER), {"pretrain_img_size": 100}, "pretrain_img_size: got 100x100, .* patches of 16"),
    (Mixer, {"arch": {**SMALL_MIXER, "block": "ffn"}}, "block: got 'ffn', expected one of 'mixer', 'resmlp', 'gmlp'"),
    (Mixer, {"arch": {**SMALL_MIXER, "block": "resmlp"}}, "layer_scale is None, block 'resmlp'"),
    (Mixer, {"arch": {**SMALL_MIXER, "layer_scale": 0.1}}, "layer_scale is 0.1, block 'mixer'"),
    (Mixer, {"arch": {**SMALL_MIXER, "depth": 0}}, "depth is 0"),
    (Mixer, {"arch": "mixer_base"}, "did you mean arch='mixer_base_"),
    (partial(NAT, {**SMALL, "mlp_ratio": 3.0}), {"kernel_size": 6}, "kernel: got 6"),
    (NAT, {"arch": "large"}, "arch: got 'large'"),
    (NAT, {"arch": SMALL}, "mlp_ratio"),
    (partial(NonLocal, 16), {"pool": "max"}, "pool"),
    (partial(NonLocal, 16), {"reduction": 3}, "reduction"),
    (partial(NonLocal, 16), {"value_reduction": 4}, "value_reduction"),
    (non_local, {"attention": {"kind": "non_local", "after": ((2, 0),)}}, "attention.kind"),
    (non_local, {"attention": {"after": ((2, 0),)}}, "attention.kind"),
    (non_local, {"attention": {}}, "attention.kind"),
    (non_local, {"attention": {"kind": "nonlocal"}}, "attention.after"),
    (non_local, {"attention": {"kind": "nonlocal", "after": ((2, 3),)}}, "attention.after"),
    (non_local, {"attention": {"kind": "nonlocal", "after": ((2, 1), [2, 1])}}, "attention.after"),
    (non_local, {"attention": {"kind": "nonlocal", "after": (2, 1)}}, "attention.after"),
    (non_local, {"attention": {"kind": "nonlocal", "after": ((2, 1),), "pool": "max"}}, "pool"),
    (non_local, {"attention": {"kind": "nonlocal", "after": ((2, 1),), "heads": 8}}, "heads", TypeError),
    (partial(PositionViT, VIT), {"position": "sine"}, "position: got 'sine', expected one of '2d', 'none'"),
    (SASA, {"arch": {**RESNET, "local_stages": (4,)}}, "local_stages"),
    (SASA, {"arch": {**RESNET, "local_stages": (0,), "bottleneck": False}}, "bottleneck"),
    (SwinMixer, {"arch": "tiny"}, "did you mean arch='tiny_d"),
    (SwinMixer, {"arch": {**SHORT, "num_heads": (3, 4)}}, "num_heads is 3, .* divides 8 channels"),
    (partial(StemViT, VIT), {"stem": "mlp"}, "stem: got 'mlp', expected one of"),
    (partial(StemViT, VIT), {"stem": "conv", "patch_size": 8}, "stem: got patches of 8 and 32 channels"),
    (StemViT, {"stem": "conv", "arch": {**VIT, "embed_dims": 36}}, "stem: got patches of 16 and 36 channels"),
    (partial(ParallelViT, VIT), {"parallel": 5}, "parallel: got 5"),
    (partial(ParallelViT, VIT), {"parallel": 1}, "parallel: got 1"),
    (partial(PositionSwin, NANO), {"relative_bias": False}, "relative_bias"),
    (partial(SlidingSwin, NANO), {"window_size": (7, 5)}, "window_size"),
    (partial(SlidingSwin, NANO), {"shift": True}, "shift", TypeError),
    (partial(PerformerSwin, NANO), {"relative_bias": True}, "relative_bias", TypeError),
]
