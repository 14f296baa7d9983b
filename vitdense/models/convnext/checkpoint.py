"""Naming schemes of ConvNeXt and ConvNeXt V2."""

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import Family, own, same

# MLPs have linear layers, or 1x1 convolutions in timm's small models; V2's vectors have all axes of a map.
_LINEAR = Transform(lambda x: x.flatten(1), lambda x: x)
_VECTOR = Transform(lambda x: x.flatten(), lambda x: x[None, None, None])
_OURS = ("conv.*", "norm.*", "gamma")


def _names(stem: str, downsample: str, block: str, parts: dict[str, str]) -> tuple[Rule, ...]:
    """Rules of a scheme whose norm follows the stem's convolution and precedes a downsampling layer's."""
    return (
        *(Rule(f"{stem}.{i}.*", f"patch_embed.{name}.*") for i, name in enumerate(("proj", "norm"))),
        *(
            Rule(f"{downsample}.{i}.*", f"stages.{{i}}.downsample.{name}.*")
            for i, name in enumerate(("norm", "reduction"))
        ),
        *(Rule(f"{block}.{theirs}", f"stages.{{i}}.blocks.{{j}}.{ours}") for theirs, ours in parts.items()),
    )


def _authors(depthwise: str, first: str, second: str) -> tuple[Rule, ...]:
    """The authors' names, with these names of the layers of a block, which differ in mm."""
    parts = {f"{depthwise}.*": "conv.*", "norm.*": "norm.*", f"{first}.*": "mlp.fc1.*", f"{second}.*": "mlp.fc2.*"}
    block = "stages.{i}.{j}"
    return (
        *_names("downsample_layers.0", "downsample_layers.{i+1}", block, {**parts, "gamma": "gamma"}),
        *(
            Rule(f"{block}.grn.{theirs}", f"stages.{{i}}.blocks.{{j}}.mlp.grn.{ours}", _VECTOR)
            for theirs, ours in (("gamma", "weight"), ("beta", "bias"))
        ),
    )


_TIMM = {"conv_dw.*": "conv.*", "norm.*": "norm.*", "gamma": "gamma", "mlp.grn.*": "mlp.grn.*"}
_TIMM |= {f"mlp.{fc}.bias": f"mlp.{fc}.bias" for fc in ("fc1", "fc2")}
_BLOCK = "stages.{i}.blocks.{j}"
FAMILY = Family(
    (
        own(*_OURS),
        Scheme("official", (*_authors("dwconv", "pwconv1", "pwconv2"), *same("norm.*", "head.*")), wrapper="model"),
        Scheme(
            "timm",
            (
                *_names("stem", "stages.{i+1}.downsample", _BLOCK, _TIMM),
                *(Rule(f"{_BLOCK}.mlp.{fc}.weight", f"{_BLOCK}.mlp.{fc}.weight", _LINEAR) for fc in ("fc1", "fc2")),
                *(Rule("head.norm.*", "norm.*"), Rule("head.fc.*", "head.*")),
            ),
        ),
        Scheme(
            "mmpretrain",  # its dense backbone, which mmdet and mmseg use
            (*_authors("depthwise_conv", "pointwise_conv1", "pointwise_conv2"), *same("norm{i}.*")),
            prefix="backbone.",
            wrapper="state_dict",
        ),
    ),
    markers=(r"stages\.\d+\.blocks\.\d+\.conv\.weight",),
)
