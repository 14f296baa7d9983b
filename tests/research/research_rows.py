"""The backbones of research in the contract of all backbones."""

from contract_rows import DEEP, GRID, HALF_STREAM, NANO, RESNET, STAGES, VIT, Precision, Row, with_random_batch_norms
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
    SlidingSwin,
    StemViT,
    SwinMixer,
)


def with_drawn_gates(model):
    """New gates of gMLP mix nothing."""
    for name, module in model.named_modules():
        if name.endswith(".linear_tokens"):
            nn.init.normal_(module.weight, std=0.02)
    return model


MIXER = {"embed_dims": 32, "depth": 4}
RESMLP = {**MIXER, "block": "resmlp", "layer_scale": 0.5}
RESEARCH = {
    "nat": Row(NAT, {**NANO, "mlp_ratio": 3.0}),
    "nat, LayerScale": Row(NAT, {**NANO, "mlp_ratio": 2.0, "layer_scale": 0.5}, {"kernel_size": 3}),
    "swin, positions alone": Row(PositionSwin, NANO, {"window_size": 4}),
    "swin, Performer": Row(PerformerSwin, NANO),
    "swin, sliding": Row(SlidingSwin, NANO),
    "vit, distilled, parallel, hMLP, LayerScale": Row(
        ParallelViT,
        {**VIT, "distilled": True, "layer_scale": 0.5},
        {"pretrain_img_size": 48, "stem": "hmlp", "parallel": 2},
        eps=1e-6,
    ),
    "vit, hMLP with LN, constant drop path": Row(
        StemViT,
        {**VIT, "token_position": False, "constant_drop_path": True},
        {"pretrain_img_size": 64, "stem": "hmlp_ln"},
        eps=1e-6,
    ),
    "vit, 4 parallel branches": Row(
        ParallelViT, {**VIT, "layer_scale": 0.5}, {"pretrain_img_size": 64, "parallel": 4}, eps=1e-6
    ),
    "vit, 2-D positions": Row(PositionViT, VIT, {"pretrain_img_size": 64, "position": "2d"}, eps=1e-6),
    "vit, ResNet as stem": Row(HybridViT, VIT, {"pretrain_img_size": 64, "stem": "r26_s32"}, eps=1e-6),
    "vit, talking heads and class attention": Row(
        CaiT, {**VIT, "layer_scale": 0.5, "class_blocks": 1}, {"pretrain_img_size": 64}, eps=1e-6
    ),
    "vit, conv stem": Row(StemViT, VIT, {"pretrain_img_size": 64, "stem": "conv"}, eps=1e-6),
    # An odd window: the zeros of a shift are one more to the left and top than its half.
    "swin_mixer": Row(SwinMixer, NANO, {"window_size": 7}, parts=("mlp",)),
    "swin_mixer, window 4x6": Row(SwinMixer, NANO, {"window_size": (4, 6)}, parts=("mlp",)),
    # Their grid is 4x6 tokens of 16 pixels, so that 72x104 pixels pad to four windows.
    "mixer, windows": Row(Mixer, MIXER, {"pretrain_img_size": (64, 96)}, eps=1e-6, parts=()),
    "mixer, resize": Row(Mixer, MIXER, {"pretrain_img_size": (64, 96), "transfer": "resize"}, eps=1e-6, parts=()),
    "mixer, ResMLP": Row(Mixer, RESMLP, {"pretrain_img_size": (64, 96)}, eps=1e-6, parts=()),
    "mixer, gMLP": Row(
        Mixer, {**MIXER, "block": "gmlp"}, {"pretrain_img_size": (64, 96)}, eps=1e-6, prepare=with_drawn_gates, parts=()
    ),
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
    "resnet, SAGAN": Precision(
        NonLocalResNet,
        {"embed_dims": 16, "depths": (1, 1, 6, 1)},
        {"attention": {"kind": "sagan", "after": ((2, 1), (2, 3))}},
        None,
        (64, 64),
    ),
}
