"""Naming schemes of the necks and heads of RF-DETR: ours, the authors' and transformers'."""

import re

import torch
from torch import Tensor, nn

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import Family, same


def layers(theirs: str, ours: str, **names: str) -> tuple[Rule, ...]:
    return tuple(Rule(f"{theirs}{other}.*", f"{ours}{own}.*") for own, other in names.items())


def _projector(path: str, norm: str, first: str, last: str, blocks: str, parts: tuple[str, str]) -> tuple[Rule, ...]:
    """A C2f block at `path` whose convolutions are called `first`, `last`, and in `blocks` as `parts`."""
    rules: tuple[Rule, ...] = ()
    for theirs, ours in (
        *((f"{path}{name}.", f"{own}.") for name, own in ((first, "first"), (last, "last"))),
        *((f"{path}{blocks}.{{i}}.{part}.", f"blocks.{{i}}.{number}.") for number, part in enumerate(parts)),
    ):
        rules += layers(theirs, ours, conv="conv", norm=norm)
    return rules


_CONVS = ("first", "last", "blocks.{i}.0", "blocks.{i}.1")
PARTS = ("norm.*", *(f"{conv}.{part}.*" for conv in _CONVS for part in ("conv", "norm")))
STAGES = (*_projector("stages.0.0.", "bn", "cv1", "cv2", "m", ("cv1", "cv2")), Rule("stages.0.1.*", "norm.*"))
PROJECTOR = Family(
    (
        Scheme("vitdense", same(*PARTS)),
        Scheme("rfdetr", STAGES),
        Scheme(
            "transformers",
            (
                *_projector("projector_layer.", "norm", "conv1", "conv2", "bottlenecks", ("conv1", "conv2")),
                Rule("layer_norm.*", "norm.*"),
            ),
        ),
    ),
    ignored=(),
    may_be_missing=(),
)

SAMPLING = {f"cross.{name}": name for name in ("sampling_offsets", "attention_weights", "value_proj", "output_proj")}
_LAYER = ("qk", "v", "proj", *SAMPLING, "fc1", "fc2", "norm1", "norm2", "norm3")
_MASKS = (
    *(f"blocks.{{i}}.{name}" for name in ("conv", "norm", "fc")),
    "pixel_proj",
    "query_proj",
    "norm",
    "fc1",
    "fc2",
)
OURS = same(
    *("queries.weight", "references.weight", "classes.*", "box.layers.{i}.*", "decoder.norm.*", "masks.bias"),
    *(f"decoder.layers.{{i}}.{name}.*" for name in _LAYER),
    *("decoder.position.layers.{i}.*", "selections.{i}.box.layers.{j}.*"),
    *(f"selections.{{i}}.{name}.*" for name in ("proj", "norm", "classes")),
    *(f"masks.{name}.*" for name in _MASKS),
)
JOINED = Transform(lambda x: x.split((len(x) // 3 * 2, len(x) // 3)), lambda *x: torch.cat(x))
_PAIR = Transform(lambda *x: torch.cat(x), lambda x: x.chunk(2))
AT = "decoder.layers.{i}."


def _head(path: str, references: str) -> tuple[Rule, ...]:
    return (
        *(Rule(f"{references}.weight", "references.weight"), Rule("query_feat.weight", "queries.weight")),
        *(Rule("class_embed.*", "classes.*"), Rule("bbox_embed.layers.{i}.*", "box.layers.{i}.*")),
        Rule(f"{path}decoder.ref_point_head.layers.{{i}}.*", "decoder.position.layers.{i}.*"),
        Rule(f"{path}enc_out_bbox_embed.{{i}}.layers.{{j}}.*", "selections.{i}.box.layers.{j}.*"),
        Rule(f"{path}enc_output.{{i}}.*", "selections.{i}.proj.*"),
        Rule(f"{path}enc_output_norm.{{i}}.*", "selections.{i}.norm.*"),
        Rule(f"{path}enc_out_class_embed.{{i}}.*", "selections.{i}.classes.*"),
    )


AUTHORS = (
    *_head("transformer.", "refpoint_embed"),
    *(
        Rule(f"transformer.{AT}self_attn.in_proj_{x}", (f"{AT}qk.{x}", f"{AT}v.{x}"), JOINED)
        for x in ("weight", "bias")
    ),
    *layers(f"transformer.{AT}self_attn.", AT, proj="out_proj"),
    *layers(f"transformer.{AT}cross_attn.", AT, **SAMPLING),
    *layers(f"transformer.{AT}", AT, fc1="linear1", fc2="linear2", norm1="norm1", norm2="norm2", norm3="norm3"),
    Rule("transformer.decoder.norm.*", "decoder.norm.*"),
    Rule("segmentation_head.bias", "masks.bias"),
    *layers("segmentation_head.blocks.{i}.", "masks.blocks.{i}.", conv="dwconv", norm="norm", fc="pwconv1"),
    *layers(
        "segmentation_head.query_features_block.", "masks.", norm="norm_in", **{"fc1": "layers.0", "fc2": "layers.2"}
    ),
    *layers("segmentation_head.", "masks.", pixel_proj="spatial_features_proj", query_proj="query_features_proj"),
)
_TRANSFORMERS = (
    *_head("", "reference_point_embed"),
    *(Rule(tuple(f"{AT}self_attn.{name}_proj.{x}" for name in "qk"), f"{AT}qk.{x}", _PAIR) for x in ("weight", "bias")),
    *layers(f"{AT}self_attn.", AT, v="v_proj", proj="o_proj"),
    *layers(f"{AT}cross_attn.", AT, **SAMPLING),
    *layers(f"{AT}mlp.", AT, fc1="fc1", fc2="fc2"),
    *layers(AT, AT, norm1="self_attn_layer_norm", norm2="cross_attn_layer_norm", norm3="layer_norm"),
    Rule("decoder.layernorm.*", "decoder.norm.*"),
    Rule("segmentation_bias", "masks.bias"),
    *layers("blocks.{i}.", "masks.blocks.{i}.", conv="depthwise_conv", norm="layernorm", fc="pointwise_conv"),
    *layers("query_features_block.", "masks.", norm="norm", fc1="mlp.fc1", fc2="mlp.fc2"),
    *layers("", "masks.", pixel_proj="spatial_features_proj", query_proj="query_features_proj"),
)
NO_CLASS = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # numbers up to 90 that COCO does not use


def fit_rows(key: str, value: Tensor, head: nn.Module, is_own: bool, rule: str) -> tuple[Tensor, str]:
    """A tensor of RF-DETR's head, by our names, with as many queries as the head has; and a text for the report.

    The first queries of every group are taken. If there are too few, they are repeated in order; equal queries read
    different boxes, and so learn to differ.

    Files of other projects have a row for every COCO category id up to 90, or n + 1 rows after training on n classes;
    the last row is "no class". Other numbers of classes are unchanged.
    """
    if re.fullmatch(r"(.+\.)?classes\.(weight|bias)", key) and not is_own:
        if head.num_classes == 80 and len(value) == 91:
            return value[[i for i in range(91) if i not in NO_CLASS]], ""
        return value[: head.num_classes] if len(value) == head.num_classes + 1 else value, ""
    if re.fullmatch(r"(queries|references)\.weight", key) and len(value) % head.num_groups == 0:
        groups = value.unflatten(0, (head.num_groups, -1))  # [G, Q, C]
        number, wanted = groups.shape[1], head.num_queries
        rule = f"the {number} are repeated in order" if wanted > number else f"the first {wanted} are taken"
        said = "" if wanted == number else f"the file has {number} queries, the model {wanted}: {rule}"
        return groups[:, torch.arange(wanted) % number].flatten(0, 1), said
    return value, ""


HEAD = Family(
    (Scheme("vitdense", OURS), Scheme("rfdetr", AUTHORS), Scheme("transformers", _TRANSFORMERS)),
    ignored=(),
    may_be_missing=(),
    fit=fit_rows,
)
HEADS = {"rfdetr_projector": PROJECTOR, "rfdetr": HEAD}
