"""The backbones of the contract: a new family is a new row of `MODELS`. Those of research are in `research_rows`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

import vitdense
from vitdense.layers.deformable import DeformableAttention


def with_random_norms(model):
    """At their initial zero, the norms of Swin V2 make every block the identity; trained ones are below 1."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 0.5, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    return model


def with_random_scales(model):
    """At their initial 1e-6 and zero, LayerScale hides every block of a ConvNeXt, and GRN is the identity."""
    for name, parameter in model.named_parameters():
        if name.endswith(".gamma") or ".grn." in name:
            nn.init.normal_(parameter, 0.5, 0.2)
    return model


def with_random_interactions(model):
    """New injectors are the identity, and new offsets and weights of samples the same for all queries."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, DeformableAttention):
            nn.init.normal_(module.sampling_offsets.weight, std=0.1)
            nn.init.normal_(module.attention_weights.weight, std=0.3)
    for interaction in model.interactions:
        nn.init.normal_(interaction["injector"].gamma)
    return model


@dataclass(frozen=True)
class Row:
    """A small backbone, and what its family promises. Called with options, it makes one.

    Attributes:
        kind: Its class.
        arch: Sizes.
        options: Other arguments.
        eps: Epsilon of every LayerNorm.
        prepare: What a new one needs to be a fair example.
        parts: What can train alone, by `finetune`.
        multiple: What the sides of maps are multiples of.
    """

    kind: type
    arch: dict
    options: dict = field(default_factory=dict)
    eps: float = 1e-5
    prepare: Callable = lambda model: model
    parts: tuple[str, ...] = ("attention", "mlp", "lora")
    multiple: int = 1

    def __call__(self, **options):
        return self.prepare(self.kind(self.arch, **{"drop_path_rate": 0.0, **self.options, **options}))

    def shallow(self) -> "Row":
        """The same with few blocks, but some of each kind: for what takes seconds for every block."""
        arch, options = ({key: FEW.get(key, value) for key, value in old.items()} for old in (self.arch, self.options))
        return replace(self, arch=arch, options=options)


FEW = {"depths": (1, 1, 2, 1), "depth": 2, "global_indices": (1,)}
NANO = {"embed_dims": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
VIT = {"embed_dims": 32, "depth": 4, "num_heads": 2}
MVIT = {"embed_dims": 16, "depths": (1, 2, 2, 2), "num_heads": 1}
CONVNEXT = {"embed_dims": 16, "depths": (1, 1, 2, 1)}
GRID = {"pretrain_img_size": 64}
V1 = {"growth": "mlp", "relative_position": False, "absolute_position": True, "residual_pooling": False}
MAX, CONVOLUTIONS = {"pool": "max"}, {"pool_all_queries": False}
NO_TABLE = {"absolute_position": False, "token_position": False}
WINDOWS = {"window_size": (2, 3), "global_indices": (3,)}
NO_KEY = {"qkv_bias": "no_key", "ffn_dims": 40}
C_RADIO = {"qkv_bias": "no_key", "position_rule": "bilinear_square_corners"}
DINOV3 = {**NO_TABLE, "registers": 2, "layer_scale": 0.5, "norm_eps": 1e-5, "rope": "dinov3", "ffn": "swiglu"}
vit = partial(Row, vitdense.ViT, eps=1e-6)
mvit = partial(Row, vitdense.MViT, eps=1e-6)
windowed = partial(Row, vitdense.WindowedViT, eps=1e-6)
MODELS = {
    "swin": Row(vitdense.Swin, NANO),
    "swin, window 4x6, absolute position": Row(
        vitdense.Swin, NANO, {"window_size": (4, 6), "absolute_position": True, **GRID}
    ),
    "swin_v2": Row(vitdense.SwinV2, NANO, {"window_size": 4}, prepare=with_random_norms),
    "swin_v2, window 4x6, extra norms, absolute position": Row(
        vitdense.SwinV2,
        {**NANO, "extra_norm_every": 2},
        {"window_size": (4, 6), "pretrained_window_sizes": (8, 8, 8, 4), "absolute_position": True, **GRID},
        prepare=with_random_norms,
    ),
    # Its first windows are 16x16 tokens, so that 72x104 pixels pad to four of them.
    "mvit": mvit(MVIT, GRID),
    "mvit, global, two heads": mvit({**MVIT, "num_heads": 2}, {"pretrain_img_size": (64, 96), "window": "global"}),
    "mvit v1": mvit({**MVIT, **V1, **MAX}, GRID),
    "mvit v1, convolutions": mvit({**MVIT, **V1, **CONVOLUTIONS}, GRID),
    "vit": vit(VIT, GRID),
    # Its first three blocks attend in windows of 2x3 tokens.
    "vit, windows, relative positions": vit(VIT, {**GRID, **WINDOWS, "relative_position": True, "img_size": 96}),
    # Patches of a table of another grid, registers and rotary positions of the map or of windows, which pad.
    "vit, registers, rotary, SwiGLU": Row(vitdense.ViT, {**VIT, **NO_KEY, **DINOV3}),
    "vit, registers, antialias, pre-norm": vit(
        {**VIT, "registers": 2, "position_rule": "antialias", "pre_norm": True, "ffn": "mlp_tanh"}, GRID
    ),
    "vit, windows, rotary of windows, sub-LN": vit(
        {**VIT, **NO_KEY, "rope": "eva02", "ffn": "swiglu_norm"}, {**GRID, **WINDOWS}
    ),
    "vit, windows, rotary of the map, DINOv2's positions": vit(
        {**VIT, "rope": "dinov3", "qkv_bias": "none", "position_rule": "dinov2"}, {**GRID, **WINDOWS}
    ),
    "vit, windows of the image": windowed(VIT, {**GRID, "global_indices": (2,)}, multiple=2),
    "vit, 3x3 windows of the image, registers, rotary": windowed(
        {**VIT, **NO_TABLE, "registers": 2, "rope": "dinov3"}, {"num_windows": 3, "global_indices": (0, 3)}, multiple=3
    ),
    "vit, 4x4 windows of the image, no class token": windowed(
        {**VIT, **C_RADIO, "class_token": False, "layer_scale": 0.1},
        {"num_windows": 4, **GRID, "out_norm": "none", "global_indices": (2,)},
        multiple=4,
    ),
    "convnext": Row(vitdense.ConvNeXt, CONVNEXT, eps=1e-6, prepare=with_random_scales, parts=("mlp",)),
    "convnext v2": Row(
        vitdense.ConvNeXt, {**CONVNEXT, "grn": True}, eps=1e-6, prepare=with_random_scales, parts=("mlp",)
    ),
    # Its first global block also pools.
    "hiera": Row(
        vitdense.Hiera,
        {**MVIT, "window_sizes": (4, 2, 4, 3), "global_indices": (1, 4), "position_grid": (3, 5)},
        eps=1e-6,
    ),
}
TRUNK = {"arch": {**VIT, "layer_scale": 0.5}, "drop_path_rate": 0.0, **GRID}
WINDOWED = {"window_size": (2, 3), "global_indices": (3,), "window_padding": "qkv"}
ADAPTER = {"conv_inplane": 8, "deform_num_heads": 4}
adapter = partial(Row, vitdense.ViTAdapter, options=ADAPTER, prepare=with_random_interactions)
ADAPTERS = {  # by their trunks; of the contract, they keep what concerns maps
    "vit_adapter, class token": adapter(TRUNK),
    "vit_adapter, windows, patches of 14": adapter({**TRUNK, **WINDOWED, "arch": {**TRUNK["arch"], "patch_size": 14}}),
    "vit_adapter, no tokens, two interactions": adapter({**TRUNK, "class_token": False, "out_indices": (0, 3)}),
}


@dataclass(frozen=True)
class Precision:
    """A deep and narrow model of a family, whose error under autocast is compared with another model's.

    Attributes:
        kind, arch, options: As of a `Row`.
        peer: Naming scheme of the model of another project with the same weights, in `scripts/peers.py`. None where no
            model that runs here has these parts: then the same model is compared with itself, with the residual stream
            cast to float32 before every block.
        shape: Image (h, w) in pixels, if it is not the size of pretraining.
        bound: On the ratio of the errors.
    """

    kind: type
    arch: dict
    options: dict = field(default_factory=dict)
    peer: str | None = "timm"
    shape: tuple[int, int] | None = None
    bound: float = 1.2


DEEP = {"embed_dims": 48, "depth": 24, "num_heads": 2}
STAGES = {"embed_dims": 16, "depths": (1, 2, 12, 2), "num_heads": (1, 2, 4, 8)}
ONE_HEAD = {**STAGES, "num_heads": 1}
EVA = {"qkv_bias": "no_key", "ffn_dims": 96}
# Of the stages after the first one, and of all of MViTv2, the stream is what a linear layer or a convolution makes. By
# torch's rules it is in half precision, in the peers as well. Measured: 1.1 to 1.3.
HALF_STREAM = 1.5
PRECISION = {
    "swin, timm": Precision(vitdense.Swin, STAGES, {"window_size": 2}, shape=(64, 64)),
    "swin, mmdet": Precision(vitdense.Swin, STAGES, {"window_size": 2}, "mmdet", (64, 64)),
    "swin_v2": Precision(vitdense.SwinV2, STAGES, {"window_size": 2}, shape=(64, 64)),
    "mvit": Precision(vitdense.MViT, ONE_HEAD, GRID),
    "hiera": Precision(
        vitdense.Hiera,
        {**ONE_HEAD, "window_sizes": (4, 2, 4, 2), "global_indices": (7, 11), "position_grid": (3, 5)},
        shape=(64, 64),
    ),
    "vit": Precision(vitdense.ViT, DEEP, GRID),
    "vit, distilled": Precision(vitdense.ViT, {**DEEP, "distilled": True}, GRID),
    "vit, DeiT III": Precision(vitdense.ViT, {**DEEP, "token_position": False, "layer_scale": 0.5}, GRID),
    "vit, DINOv2 with registers": Precision(vitdense.ViT, {**DEEP, "registers": 2, "layer_scale": 0.5}, GRID),
    "vit, DINOv3": Precision(vitdense.ViT, {**DEEP, **EVA, **DINOV3}, GRID),
    "vit, EVA-02": Precision(vitdense.ViT, {**DEEP, **EVA, "rope": "eva02", "ffn": "swiglu_norm"}, GRID),
    # No model of another project has these parts and runs here.
    "vit, ViTDet": Precision(
        vitdense.ViT, DEEP, {**GRID, "window_size": 2, "relative_position": True, "img_size": 64}, None
    ),
    "swin, absolute position": Precision(
        vitdense.Swin, STAGES, {**GRID, "window_size": 2, "absolute_position": True}, None, (64, 64), HALF_STREAM
    ),
    "mvit, windows": Precision(vitdense.MViT, ONE_HEAD, GRID, None, None, HALF_STREAM),
    "vit_adapter": Precision(
        vitdense.ViTAdapter,
        {},
        {"trunk": {"arch": {**DEEP, "depth": 12}, "drop_path_rate": 0.0, **GRID}, "deform_num_heads": 2},
        None,
        (64, 64),
    ),
}
