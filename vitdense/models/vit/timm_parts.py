"""Properties of timm's plain ViTs that their parameters do not show."""

from typing import Any

from torch import nn

from vitdense.checkpoint.errors import CheckpointMismatchError

# timm's rotary positions (class, base, halves, order and offset of the axes, pretraining map) -> our name.
ROPES_IN_TIMM = {
    ("RotaryEmbeddingDinoV3", 100, True, "ij", 0, None): "dinov3",
    ("RotaryEmbeddingCat", 10000, False, "ij", 0, (16, 16)): "eva02",
    ("RotaryEmbeddingCat", 10000, False, "xy", 1, (32, 32)): "pe",
    ("RotaryEmbeddingCat", 10000, False, "xy", 0, (32, 32)): "pe",  # without a class token
}
ACTIVATIONS_IN_TIMM = {
    "GELU(approximate='none')": "mlp",
    "GELU(approximate='tanh')": "mlp_tanh",
    "GELUTanh()": "mlp_tanh",
}


def parts_in_timm(model: nn.Module) -> dict[str, Any]:
    """Fields of `ViTArch` that the parameters of timm's plain ViTs do not show; empty for other models.

    Parts whose parameters fit ours, but compute something else, are a `CheckpointMismatchError`.
    """
    from timm.layers import GluMlp
    from timm.models.eva import Eva, EvaBlock
    from timm.models.vision_transformer import Block, ParallelThingsBlock, VisionTransformer

    if not isinstance(model, (VisionTransformer, Eva)):
        return {}
    modules = [module for block in model.blocks for module in block.modules()]
    mlps = [module for module in modules if hasattr(module, "fc1") and not isinstance(module, GluMlp)]
    rope = getattr(model, "rope", None)
    names = ("temperature", "rotate_half", "grid_indexing", "grid_offset", "ref_feat_shape")
    of_rope = (type(rope).__name__, *(getattr(rope, name, None) for name in names))
    parts = {
        "norm_eps": {module.eps for module in modules if isinstance(module, nn.LayerNorm)},
        "rope": {rope and ROPES_IN_TIMM.get(of_rope, of_rope)},
        "ffn": {ACTIVATIONS_IN_TIMM.get(str(mlp.act), (str(mlp.act),)) for mlp in mlps},
    }
    unknown = [part for values in parts.values() for part in values if isinstance(part, tuple) or len(values) > 1]
    known = (Block, ParallelThingsBlock, EvaBlock)
    unknown += {type(block).__name__ for block in model.blocks if type(block) not in known}  # for example post-norm
    if unknown:
        raise CheckpointMismatchError(
            f"timm's model has {unknown}, which our ViT has not: it would load the parameters and compute something "
            f"else; choose other weights"
        )
    return {name: values.pop() for name, values in parts.items() if values}
