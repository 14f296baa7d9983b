"""Naming schemes of NAT."""

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import Family, own, same

# The authors' table has the heads first and offsets key - query; ours has query - key.
RPB = Transform(
    lambda x: x.flip(1, 2).permute(1, 2, 0).contiguous(),
    lambda x: x.permute(2, 0, 1).flip(1, 2).contiguous(),
)
_BLOCK = {
    **{f"{name}.*": f"{name}.*" for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")},
    "gamma1": "gamma_1",
    "gamma2": "gamma_2",
}
_TRUNK = (
    *same("patch_embed.proj.{i}.*", "patch_embed.norm.*"),
    *(Rule(f"levels.{{i}}.blocks.{{j}}.{theirs}", f"stages.{{i}}.blocks.{{j}}.{x}") for theirs, x in _BLOCK.items()),
    Rule("levels.{i}.blocks.{j}.attn.rpb", "stages.{i}.blocks.{j}.attn.bias.relative_position_bias_table", RPB),
    *(Rule(f"levels.{{i}}.downsample.{x}", f"stages.{{i}}.downsample.{x}") for x in ("reduction.weight", "norm.*")),
)
FAMILY = Family(
    (
        own("attn.bias.relative_position_bias_table", "gamma_1", "gamma_2"),
        Scheme("official", (*_TRUNK, *same("norm.*", "head.*"))),
        # The authors' detection and segmentation code, on mm.
        Scheme("official", (*_TRUNK, *same("norm{i}.*")), prefix="backbone.", wrapper="state_dict"),
    ),
    markers=(r"patch_embed\.proj\.0\.weight",),
)
