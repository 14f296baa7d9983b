"""Naming schemes of published checkpoints, as tables.

A scheme's rules turn its names into ours. What may be missing or left over is named here and nowhere else:
a rule with target None drops a key on purpose, `FRESH` lists what a classification checkpoint cannot hold.
"""

from dataclasses import dataclass

from torch import Tensor

from vitdense.weights.rename import CheckpointMismatchError, Rule


@dataclass(frozen=True)
class Scheme:
    """A naming scheme: its name and its rename table."""

    name: str
    rules: tuple[Rule, ...]


def from_unfold(x: Tensor) -> Tensor:
    """Reorder the input of a patch merging from ``nn.Unfold`` order to the authors'.

    Unfold lists channel c and neighbour k (2 * row + column) at ``4 c + k``; the authors' code lists neighbour
    blocks (0, 0), (1, 0), (0, 1), (1, 1) of all channels each. mmdet, mmseg and mmpretrain use the former.

    Args:
        x: ``[out, 4 C]`` weight or ``[4 C]`` norm parameter.
    """
    blocks = x.unflatten(-1, (-1, 4))[..., [0, 2, 1, 3]]  # [..., C, 4]
    return blocks.transpose(-1, -2).flatten(-2)  # [..., 4*C]


def position_map(x: Tensor) -> Tensor:
    """Absolute position embedding of the authors' dense code, ``[1, C, h, w]``, to ours, ``[1, h, w, C]``."""
    if x.ndim != 4:
        raise CheckpointMismatchError(
            f"absolute_pos_embed has shape {tuple(x.shape)}, expected [1, C, h, w] with an explicit grid"
        )
    return x.permute(0, 2, 3, 1).contiguous()  # [1, h, w, C]


def _same(*names: str) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name in names)


def _swin_blocks(theirs: str, attn: str, fc1: str, fc2: str) -> tuple[Rule, ...]:
    """Rules of a Swin block; `theirs` is the path of a block, the rest the names inside it."""
    ours = "stages.#.blocks.#."
    table = "relative_position_bias_table"
    pairs = {
        "norm1.*": "norm1.*",
        "norm2.*": "norm2.*",
        f"{attn}.qkv.*": "attn.qkv.*",
        f"{attn}.proj.*": "attn.proj.*",
        f"{attn}.{table}": f"attn.bias.{table}",
        f"{fc1}.*": "mlp.fc1.*",
        f"{fc2}.*": "mlp.fc2.*",
    }
    return (
        *(Rule(theirs + old, ours + new) for old, new in pairs.items()),
        Rule(f"{theirs}{attn}.relative_position_index", None),  # rebuilt from the window
    )


SWIN = (
    Scheme(
        "vitdense",
        (
            *_same("patch_embed.proj.*", "patch_embed.norm.*", "absolute_pos_embed.table", "norm#.*"),
            *_same("stages.#.blocks.#.norm1.*", "stages.#.blocks.#.norm2.*", "stages.#.blocks.#.mlp.*"),
            *_same("stages.#.blocks.#.attn.qkv.*", "stages.#.blocks.#.attn.proj.*", "stages.#.blocks.#.attn.bias.*"),
            *_same("stages.#.downsample.*"),
        ),
    ),
    Scheme(
        "official",  # the authors' classification, detection and segmentation code, and detectron2
        (
            *_same("patch_embed.proj.*", "patch_embed.norm.*", "norm#.*"),
            Rule("absolute_pos_embed", "absolute_pos_embed.table", position_map),
            *_swin_blocks("layers.#.blocks.#.", attn="attn", fc1="mlp.fc1", fc2="mlp.fc2"),
            Rule("layers.#.blocks.#.attn_mask", None),  # rebuilt per size
            Rule("layers.#.downsample.*", "stages.#.downsample.*"),
            Rule("norm.*", None),  # of the classifier
            Rule("head.*", None),
        ),
    ),
    Scheme(
        "mmdet",  # and mmseg
        (
            Rule("patch_embed.projection.*", "patch_embed.proj.*"),
            *_same("patch_embed.norm.*", "norm#.*"),
            *_swin_blocks("stages.#.blocks.#.", attn="attn.w_msa", fc1="ffn.layers.0.0", fc2="ffn.layers.1"),
            Rule("stages.#.downsample.norm.*", "stages.#.downsample.norm.*", from_unfold),
            Rule("stages.#.downsample.reduction.weight", "stages.#.downsample.reduction.weight", from_unfold),
        ),
    ),
)

SCHEMES = {"swin": SWIN}

# Output norms: absent from every classification checkpoint, and more or fewer by `out_indices`.
FRESH = (r"norm\d+\..+",)
