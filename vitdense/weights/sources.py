"""Published checkpoints as tables: the naming schemes of every family, and weights by name.

A scheme's rules lead from its names to ours and back, without loss. Our names are those of the model's own state
dict, and beside them those of `EXTRAS`: what a checkpoint may hold that a backbone does not.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import Change, Rule

# What may be left over, and why: of a classifier; rebuilt from the window or the image size.
CLASSIFIER = r"(norm|head)\..+"
REBUILT = r".+\.attn\.bias\.(index|relative_coords_table)|.+\.attn_mask"
# Output norms: absent from every classification checkpoint, and more or fewer by `out_indices`.
OUTPUT_NORMS = r"norm\d+\..+"


@dataclass(frozen=True)
class Scheme:
    """A naming scheme, or one form of it (a name may stand more than once, as classifier and as dense backbone).

    Attributes:
        name: Whose names they are.
        rules: Their rename table.
        needs: Keys without which it is not this scheme: they tell schemes apart whose names look alike.
        buffers: Whether its files hold buffers that are rebuilt from the window; if not, they may.
        prefix: What users of the scheme's files expect before the names of a backbone alone.
        wrapper: The entry of a torch file under which they expect the tensors; None for the file itself.
    """

    name: str
    rules: tuple[Rule, ...]
    needs: tuple[str, ...] = ()
    buffers: bool = True
    prefix: str = ""
    wrapper: str | None = None


def from_unfold(x: Tensor) -> Tensor:
    """Reorder the input of a patch merging from ``nn.Unfold`` order to the authors'.

    Unfold lists channel c and neighbour k (2 * row + column) at ``4 c + k``; the authors' code lists neighbour
    blocks (0, 0), (1, 0), (0, 1), (1, 1) of all channels each. mmdet, mmseg and mmpretrain use the former.

    Args:
        x: ``[out, 4 C]`` weight or ``[4 C]`` norm parameter.
    """
    blocks = x.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]  # [..., C, 4]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def to_unfold(x: Tensor) -> Tensor:
    """The inverse of `from_unfold`."""
    blocks = x.unflatten(-1, (4, -1))[..., [0, 2, 1, 3], :]  # [..., 4, C]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def square_table(x: Tensor) -> Tensor:
    """Flat bias table ``[(2w - 1)^2, heads]`` of a square window to ours, ``[2w - 1, 2w - 1, heads]``.

    Raises:
        CheckpointMismatchError: No square window has so many rows.
    """
    side = math.isqrt(x.shape[0])
    if x.ndim != 2 or side * side != x.shape[0] or side % 2 == 0:
        raise CheckpointMismatchError(
            f"a relative_position_bias_table has shape {tuple(x.shape)}, expected [(2w - 1)^2, heads]: flat tables "
            f"are read as those of square windows only, for they do not tell height from width; under vitdense's "
            f"names a table carries its window"
        )
    return x.unflatten(0, (side, side))  # [2w-1, 2w-1, heads]


def dense_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' dense code, ``[1, C, h, w]``, to ours, ``[1, h, w, C]``."""
    if x.ndim != 4:
        raise CheckpointMismatchError(
            f"absolute_pos_embed has shape {tuple(x.shape)}, expected [1, C, h, w] beside the names of a dense backbone"
        )
    return x.permute(0, 2, 3, 1).contiguous()  # [1, h, w, C]


def flat_position(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' classifier, ``[1, h * w, C]`` of a square image, to ours."""
    side = math.isqrt(x.shape[1])
    if x.ndim != 3 or side * side != x.shape[1]:
        raise CheckpointMismatchError(
            f"absolute_pos_embed has shape {tuple(x.shape)}, expected [1, h * h, C]: flat positions are read as those "
            f"of a square image only, for they do not tell height from width"
        )
    return x.unflatten(1, (side, side))  # [1, h, w, C]


UNFOLD = Change(from_unfold, to_unfold)
TABLE = Change(square_table, lambda x: x.flatten(0, 1))
DENSE_POSITION = Change(dense_position, lambda x: x.permute(0, 3, 1, 2).contiguous())
FLAT_POSITION = Change(flat_position, lambda x: x.flatten(1, 2))
# torchvision keeps the index of a window flat.
FLAT_INDEX = Change(lambda x: x.unflatten(0, (math.isqrt(x.numel()), -1)), lambda x: x.flatten())
# torchvision's V2 keeps a bias for keys that it sets to zero in every forward pass.
NO_KEY_BIAS = Change(
    lambda x: (x.chunk(3)[0].clone(), x.chunk(3)[2].clone()),
    lambda q, v: torch.cat([q, torch.zeros_like(q), v]),
)


def _same(*names: str) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name in names)


def _prefixed(prefix: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(prefix + rule.theirs, rule.ours, rule.change) for rule in rules)


def _stem(proj: str = "patch_embed.proj", norm: str = "patch_embed.norm") -> tuple[Rule, ...]:
    return Rule(f"{proj}.*", "patch_embed.proj.*"), Rule(f"{norm}.*", "patch_embed.norm.*")


def _block(path: str, attn: str = "attn", fc1: str = "mlp.fc1", fc2: str = "mlp.fc2") -> tuple[Rule, ...]:
    """What blocks of V1 and V2 share; `path` is the path of a block, the rest the names inside it."""
    ours = "stages.{i}.blocks.{j}."
    names = {"norm1": "norm1", "norm2": "norm2", f"{attn}.proj": "attn.proj", fc1: "mlp.fc1", fc2: "mlp.fc2"}
    return tuple(Rule(f"{path}{theirs}.*", f"{ours}{name}.*") for theirs, name in names.items())


def _v1(attn: str, flat_index: bool = False) -> tuple[Rule, ...]:
    """Attention of Swin V1; `attn` is its path."""
    ours = "stages.{i}.blocks.{j}.attn."
    return (
        Rule(f"{attn}qkv.*", f"{ours}qkv.*"),
        Rule(f"{attn}relative_position_bias_table", f"{ours}bias.relative_position_bias_table", TABLE),
        Rule(f"{attn}relative_position_index", f"{ours}bias.index", FLAT_INDEX if flat_index else None),
    )


def _v2(attn: str, flat_index: bool = False, joint_bias: bool = False) -> tuple[Rule, ...]:
    """Attention of Swin V2; `attn` is its path."""
    ours = "stages.{i}.blocks.{j}.attn."
    q, v = f"{ours}q_bias", f"{ours}v_bias"
    separate = (Rule(f"{attn}q_bias", q), Rule(f"{attn}v_bias", v))
    return (
        Rule(f"{attn}qkv.weight", f"{ours}qkv.weight"),
        *((Rule(f"{attn}qkv.bias", (q, v), NO_KEY_BIAS),) if joint_bias else separate),
        Rule(f"{attn}logit_scale", f"{ours}logit_scale"),
        Rule(f"{attn}cpb_mlp.*", f"{ours}bias.cpb_mlp.*"),
        Rule(f"{attn}relative_coords_table", f"{ours}bias.relative_coords_table"),
        Rule(f"{attn}relative_position_index", f"{ours}bias.index", FLAT_INDEX if flat_index else None),
    )


def _merge(path: str, unfold: Change | None = None, unfold_norm: Change | None = None) -> tuple[Rule, ...]:
    """Patch merging; `path` is its path under the index of the stage before it."""
    return (
        Rule(f"{path}reduction.weight", "stages.{i}.downsample.reduction.weight", unfold),
        Rule(f"{path}norm.*", "stages.{i}.downsample.norm.*", unfold_norm),
    )


_mask = Rule("layers.{i}.blocks.{j}.attn_mask", "stages.{i}.blocks.{j}.attn_mask")


def _official(attention: tuple[Rule, ...]) -> tuple[Scheme, Scheme]:
    trunk = (*_stem(), *_block("layers.{i}.blocks.{j}."), *attention, *_merge("layers.{i}.downsample."))
    needs = ("layers.0.downsample.reduction.weight",)  # timm's blocks have the same names
    dense = (*trunk, *_same("norm{i}.*"), Rule("absolute_pos_embed", "absolute_pos_embed.table", DENSE_POSITION))
    classifier = (
        *(*trunk, _mask, *_same("norm.*", "head.*")),
        Rule("absolute_pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
    )
    # The second also names detectron2's port and the authors' detection and segmentation code.
    return (
        Scheme("official", classifier, needs, wrapper="model"),
        Scheme("official", dense, needs, wrapper="model"),
    )


def _timm(attention: tuple[Rule, ...]) -> Scheme:
    head = (*_same("norm.*"), Rule("head.fc.*", "head.*"))
    # Merging stands at the start of the next stage, under its index.
    merge = _merge("layers.{i+1}.downsample.")
    return Scheme("timm", (*_stem(), *_block("layers.{i}.blocks.{j}."), *attention, *merge, *head), buffers=False)


def _torchvision(attention: tuple[Rule, ...]) -> Scheme:
    block = _block("features.{2i+1}.{j}.", fc1="mlp.0", fc2="mlp.3")
    merge = _merge("features.{2i+2}.")
    return Scheme(
        "torchvision",
        (*_stem("features.0.0", "features.0.2"), *block, *attention, *merge, *_same("norm.*", "head.*")),
    )


def _mm(attention: tuple[Rule, ...], merge: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The trunk under the names of mmdet, mmseg and mmpretrain."""
    block = _block("stages.{i}.blocks.{j}.", "attn.w_msa", "ffn.layers.0.0", "ffn.layers.1")
    return (*_stem("patch_embed.projection"), *block, *attention, *merge)


def _mmpretrain(trunk: tuple[Rule, ...]) -> Scheme:
    head = (Rule("backbone.norm3.*", "norm.*"), Rule("head.fc.*", "head.*"))
    return Scheme("mmpretrain", (*_prefixed("backbone.", trunk), *head), wrapper="state_dict")


def _own(*names: str) -> Scheme:
    stem = ("patch_embed.proj.*", "patch_embed.norm.*", "absolute_pos_embed.table")
    block = ("norm1.*", "norm2.*", "attn.qkv.*", "attn.proj.*", "mlp.*", *names)
    blocks = (f"stages.{{i}}.blocks.{{j}}.{name}" for name in block)
    rules = _same(*stem, *blocks, "stages.{i}.downsample.*", "norm{i}.*", "norm.*", "head.*")
    return Scheme("vitdense", rules, buffers=False, wrapper="state_dict")


_MM_V1 = _mm(_v1("stages.{i}.blocks.{j}.attn.w_msa."), _merge("stages.{i}.downsample.", UNFOLD, UNFOLD))
SWIN = (
    _own("attn.bias.relative_position_bias_table"),
    *_official(_v1("layers.{i}.blocks.{j}.attn.")),
    _timm(_v1("layers.{i}.blocks.{j}.attn.")),
    _torchvision(_v1("features.{2i+1}.{j}.attn.", flat_index=True)),
    Scheme(
        "mmdet",  # and mmseg, and mmpretrain's backbone when dense; classifiers come out of mmdet's own converter
        (
            *_MM_V1,
            *_same("norm{i}.*", "norm.*", "head.*", "stages.{i}.blocks.{j}.attn_mask"),
            Rule("absolute_pos_embed", "absolute_pos_embed.table", FLAT_POSITION),
        ),
        prefix="backbone.",
        wrapper="state_dict",
    ),
    _mmpretrain(_MM_V1),
)

# Merging stands at the start of the next stage; V2's norm comes after the reduction, in no neighbour's order.
_MM_V2 = (
    *_mm(_v2("stages.{i}.blocks.{j}.attn.w_msa."), _merge("stages.{i+1}.downsample.", UNFOLD)),
    *_same("stages.{i}.blocks.{j}.norm3.*"),  # of huge and giant
)
SWIN_V2 = (
    _own("attn.q_bias", "attn.v_bias", "attn.logit_scale", "attn.bias.cpb_mlp.*", "norm3.*"),
    *_official(_v2("layers.{i}.blocks.{j}.attn.")),
    _timm(_v2("layers.{i}.blocks.{j}.attn.")),
    _torchvision(_v2("features.{2i+1}.{j}.attn.", flat_index=True, joint_bias=True)),
    _mmpretrain(_MM_V2),
    Scheme("mmpretrain", (*_MM_V2, *_same("norm{i}.*")), prefix="backbone.", wrapper="state_dict"),
)

SCHEMES: dict[str, tuple[Scheme, ...]] = {"swin": SWIN, "swin_v2": SWIN_V2}

# Weights by name: `init_cfg=dict(type='Pretrained', checkpoint='swin_t.ms_in1k')`.
_sizes = {"t": "tiny", "s": "small", "b": "base", "l": "large"}
NAMED: dict[str, str] = {
    # The authors' release, as timm hosts it. ImageNet-1K, or 22K where the name says so.
    **{f"swin_{s}.ms_in1k": f"timm://swin_{_sizes[s]}_patch4_window7_224.ms_in1k" for s in "tsb"},
    **{f"swin_{s}.ms_in22k": f"timm://swin_{_sizes[s]}_patch4_window7_224.ms_in22k" for s in "tsbl"},
    **{f"swin_{s}_384.ms_in22k": f"timm://swin_{_sizes[s]}_patch4_window12_384.ms_in22k" for s in "bl"},
    **{f"swinv2_{s}_w8.ms_in1k": f"timm://swinv2_{_sizes[s]}_window8_256.ms_in1k" for s in "tsb"},
    **{f"swinv2_{s}_w16.ms_in1k": f"timm://swinv2_{_sizes[s]}_window16_256.ms_in1k" for s in "tsb"},
    **{f"swinv2_{s}_w12.ms_in22k": f"timm://swinv2_{_sizes[s]}_window12_192.ms_in22k" for s in "bl"},
    # Trained by torchvision.
    **{f"swin_{s}.tv_in1k": f"torchvision://swin_{s}" for s in "tsb"},
    **{f"swinv2_{s}_w8.tv_in1k": f"torchvision://swin_v2_{s}" for s in "tsb"},
}
