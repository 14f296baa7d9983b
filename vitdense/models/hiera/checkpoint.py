"""Naming schemes of Hiera."""

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import Family, own
from vitdense.models.mvit.checkpoint import NUMBERED_THROUGH

_CHANNELS_LAST = Transform(lambda x: x.permute(0, 2, 3, 1), lambda x: x.permute(0, 3, 1, 2))  # [1, h, w, C]


def _trunk(proj: str = "proj", norm: str = "norm", fc1: str = "mlp.fc1", fc2: str = "mlp.fc2") -> tuple[Rule, ...]:
    block = {"attn.qkv": "attn.qkv", "attn.proj": "attn.proj", "proj": "proj", fc1: "mlp.fc1", fc2: "mlp.fc2"}
    block |= {f"{norm}{i}": f"norm{i}" for i in (1, 2)}
    return (
        Rule(f"patch_embed.{proj}.*", "patch_embed.proj.*"),
        Rule("pos_embed", "absolute_pos_embed.table", _CHANNELS_LAST),
        Rule("pos_embed_window", "absolute_pos_embed.window", _CHANNELS_LAST),
        *(Rule(f"blocks.{{i}}.{theirs}.*", f"blocks.{{i}}.{ours}.*") for theirs, ours in block.items()),
    )


# In files of whole models the prefix marks the trunk. Neck, prompts, masks and memory are not needed.
FAMILY = Family(
    (
        own("proj.*", outside=("absolute_pos_embed.window",)),
        Scheme(
            "official",
            _trunk(fc1="mlp.layers.0", fc2="mlp.layers.1"),
            prefix="image_encoder.trunk.",
            wrapper="model",
            layout=NUMBERED_THROUGH,
        ),
        Scheme(
            "timm",
            (*_trunk(), Rule("head.norm.*", "norm.*"), Rule("head.fc.*", "head.*")),
            layout=NUMBERED_THROUGH,
        ),
        Scheme(
            "transformers",
            _trunk("projection", "layer_norm", "mlp.proj_in", "mlp.proj_out"),
            prefix="vision_encoder.backbone.",
            layout=NUMBERED_THROUGH,
        ),
    ),
    markers=(r"absolute_pos_embed\.window",),
)
