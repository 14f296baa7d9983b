"""Naming schemes of Swin V2, and the windows of pretraining."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule, Transform
from vitdense.checkpoint.schemes import SWIN_STEM, Family, mmpretrain, own, same
from vitdense.layers.bias import window_of_offsets
from vitdense.models.swin.checkpoint import (
    FLAT_INDEX,
    UNFOLD,
    merge,
    mm_trunk,
    official,
    timm,
    torchvision,
    window_buffers,
)

# torchvision keeps a bias for keys, but sets it to zero in every forward pass.
NO_KEY_BIAS = Transform(
    lambda x: (x.chunk(3)[0].clone(), x.chunk(3)[2].clone()),
    lambda q, v: torch.cat([q, torch.zeros_like(q), v]),
)


def _attention(path: str, index: Transform | None = None, joint_bias: bool = False) -> tuple[Rule, ...]:
    ours = "stages.{i}.blocks.{j}.attn."
    q, v = f"{ours}q_bias", f"{ours}v_bias"
    separate = (Rule(f"{path}q_bias", q), Rule(f"{path}v_bias", v))
    return (
        Rule(f"{path}qkv.weight", f"{ours}qkv.weight"),
        *((Rule(f"{path}qkv.bias", (q, v), NO_KEY_BIAS),) if joint_bias else separate),
        Rule(f"{path}logit_scale", f"{ours}logit_scale"),
        Rule(f"{path}cpb_mlp.*", f"{ours}bias.cpb_mlp.*"),
        Rule(f"{path}relative_coords_table", f"{ours}bias.relative_coords_table"),
        Rule(f"{path}relative_position_index", f"{ours}bias.index", index),
    )


# mm's patch merging is at the start of the next stage. Unfold does not reorder its norm, which follows the reduction.
_MM = (
    *mm_trunk(_attention("stages.{i}.blocks.{j}.attn.w_msa."), merge("stages.{i+1}.downsample.", UNFOLD)),
    *same("stages.{i}.blocks.{j}.norm3.*"),  # huge and giant
)


def check_pretraining_windows(model: nn.Module, ours: Mapping[str, Tensor]) -> None:
    """Check that window coordinates in a checkpoint equal the model's. The parameters fit any window."""
    buffers = dict(model.named_buffers())
    for key, table in ours.items():
        # Blocks that the model lacks are refused later, with all mismatches.
        if not key.endswith(".relative_coords_table") or key not in buffers:
            continue
        try:
            theirs, expected = window_of_offsets(table), window_of_offsets(buffers[key])
        except (ValueError, IndexError, ArithmeticError) as error:
            raise CheckpointMismatchError(
                f"{key}: got {list(table.shape)}, {table.dtype}, expected [1, 2 h - 1, 2 w - 1, 2], offsets in windows "
                f"of h x w tokens"
            ) from error
        if table.shape[1] > 1 and theirs != expected:
            raise CheckpointMismatchError(
                f"the checkpoint was pretrained with windows of {theirs[0]}x{theirs[1]} in stage {key.split('.')[1]}, "
                f"the model expects {expected[0]}x{expected[1]}: set pretrained_window_sizes, one for each stage, such "
                f"as (16, 16, 16, 8)"
            )


FAMILY = Family(
    (
        own("attn.q_bias", "attn.v_bias", "attn.logit_scale", "attn.bias.cpb_mlp.*", "norm3.*"),
        *official(_attention("layers.{i}.blocks.{j}.attn.")),
        timm(_attention("layers.{i}.blocks.{j}.attn.")),
        torchvision(_attention("features.{2i+1}.{j}.attn.", FLAT_INDEX, joint_bias=True)),
        *mmpretrain(_MM),
    ),
    markers=(*SWIN_STEM, r".+\.attn\.logit_scale"),
    check=check_pretraining_windows,
    buffers=window_buffers,
)
