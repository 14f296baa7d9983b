"""Names in files of whole models of other projects: EoMT, PMT, RF-DETR and LW-DETR, and detectron2's ViTDet."""

import argparse
import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Rule

ACTIVE = r"_\w+_active_mask"  # in an RF-DETR: which outputs have more than a box
Table = Mapping[str, str | None]  # regular expression of keys -> part of the model; None: not needed

_MASKS_AUTHORS: Table = {
    r"network\.encoder\.backbone\.(?P<tail>.+)": "backbone.",
    r"network\.encoder\.pixel_(mean|std)|criterion\.empty_weight": None,
    r"network\.(?P<tail>.+)": "head.",
}
_MASKS_TRANSFORMERS: Table = {
    r"(?P<tail>(embeddings|layers|layernorm)\..+)": "backbone.",
    r"criterion\.empty_weight": None,
    r"(?P<tail>(query|class_predictor|mask_head|upscale_block)\..+|attn_mask_probs)": "head.",
}
_RFDETR_AUTHORS: Table = {
    r".+\.mask_token": None,  # from DINOv2's pretraining
    rf"{ACTIVE}|transformer\.decoder\.\w+_class_mask": None,  # which outputs have more than a box, and that they differ
    r"backbone\.0\.encoder\.(encoder\.)?(?P<tail>.+)": "backbone.",
    r"backbone\.0\.projector\.(?P<tail>.+)": "neck.",
    r"backbone\.0\.(?P<tail>\w+_projector\..+)": "neck.",  # of a head for more than boxes
    r"(?P<tail>(transformer|query_feat|\w+_embed|segmentation_head)\..+)": "bbox_head.",
}
_RFDETR_TRANSFORMERS: Table = {
    r".+\.mask_token": None,
    r"(model\.)?model\.backbone\.backbone\.(?P<tail>.+)": "backbone.",
    r"(model\.)?model\.backbone\.projector\.(scale_layers\.0\.)?(?P<tail>.+)": "neck.",
    r"(model\.){0,2}(?P<tail>(reference_point_embed|query_feat|decoder|enc_\w+|class_embed|bbox_embed)\..+)": (
        "bbox_head."
    ),
    r"(?P<tail>segmentation_bias|(blocks|spatial_features_proj|query_features_\w+)\..+)": "bbox_head.",
}
# Parameters of RF-DETR with a row for every output.
CLASSES = r"(transformer\.enc_out_)?class_embed(\.\d+)?\.(weight|bias)"
COCO = ("person", "toothbrush", 80, 91)  # of COCO's ids: first and last name, number of names and of outputs
DIFFERENCES = "eomt_dinov3"  # scheme of trunks that EoMT's authors publish as differences to DINOv3


def is_whole_model(keys: Iterable[str]) -> bool:
    """Whether a file with these keys is a whole model of EoMT, PMT or RF-DETR, by the authors or by transformers."""
    return _table(keys) is not None


def _table(keys: Iterable[str]) -> Table | None:
    keys = set(keys)
    if any(re.match(r"network\.(decoder\.)?q\.weight", key) for key in keys):
        return _MASKS_AUTHORS
    if {"query.weight", "class_predictor.weight"} <= keys:
        return _MASKS_TRANSFORMERS
    if {"refpoint_embed.weight", "transformer.enc_output.0.weight"} <= keys:
        return _RFDETR_AUTHORS
    is_rfdetr = any(key.endswith("model.reference_point_embed.weight") for key in keys)
    return _RFDETR_TRANSFORMERS if is_rfdetr else None


def split_parts(state: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    """A whole model with the prefixes of mm's models: ``backbone.``, `head`, and RF-DETR's; see `is_whole_model`.

    Unknown keys stay as they are; loading refuses them as unexpected.
    """
    table, named = _table(state), {}
    for key, value in state.items():
        found = next(((part, m) for pattern, part in table.items() if (m := re.fullmatch(pattern, key))), None)
        if found is None:
            named[key] = value
        elif found[0] is not None:
            named[(head if found[0] == "head." else found[0]) + found[1]["tail"]] = value
    return named


def trained_classes(checkpoint: Mapping) -> dict[int, str]:
    """Names of classes by the number of the output, in a file of RF-DETR's own trainer; empty for other files.

    The file lists names by output. If the ids of its data begin at 1, the first output has no class, and its name is
    empty. Outputs after the last name have no class either.
    """
    args = checkpoint.get("args")
    options = vars(args) if isinstance(args, argparse.Namespace) else args
    names = options.get("class_names") if isinstance(options, Mapping) else None
    names = [names] if isinstance(names, str) else names if isinstance(names, (list, tuple)) else []
    return {i: name for i, name in enumerate(names) if isinstance(name, str) and name}


def with_named_outputs(state: Mapping[str, Tensor], names: Mapping[int, str]) -> tuple[dict[str, Tensor], str]:
    """The state dict of an RF-DETR without unnamed outputs, and a sentence on its outputs.

    More names than outputs are a `CheckpointMismatchError`. If some outputs have more than a box, these stay.
    """
    active = next((value for key, value in state.items() if re.fullmatch(ACTIVE, key) and value.any()), None)
    if active is not None:
        rows = active.any(1).nonzero()[:, 0]
        return {key: value[rows] if re.fullmatch(CLASSES, key) else value for key, value in state.items()}, ""
    outputs = next((len(value) for key, value in state.items() if re.fullmatch(CLASSES, key)), 0)
    if not names or not outputs or (names.get(0), [*names.values()][-1], len(names), outputs) == COCO:
        return dict(state), ""
    rows = [*names]
    if rows[-1] >= outputs:
        raise CheckpointMismatchError(f"args.class_names names {rows[-1] + 1} classes, but there are {outputs} outputs")
    others = [str(i) for i in range(outputs) if i not in names]
    said = ", ".join(f"{i} {name}" for i, name in names.items())
    said = f"outputs are {said}; of no class: {', '.join(others) or 'none'}"
    return {key: value[rows] if re.fullmatch(CLASSES, key) else value for key, value in state.items()}, said


_MASKS, _BOXES, _RPN = "roi_heads.mask_head", "roi_heads.box_head.{k}", "proposal_generator.rpn_head"


def _conv(theirs: str, conv: str, norm: str) -> tuple[Rule, Rule]:
    """A convolution with a LayerNorm, which detectron2 keeps inside of the convolution."""
    return Rule(f"{theirs}.weight", f"{conv}.weight"), Rule(f"{theirs}.norm.*", f"{norm}.*")


# From detectron2's detectors with a simple feature pyramid (ViTDet, EVA-02) to mmdet's Cascade Mask R-CNN with
# `DeconvPyramid`. The trunk keeps detectron2's names.
DETECTOR = (
    Rule("backbone.net.*", "backbone.*"),
    *(Rule(f"backbone.simfp_2.{n}.*", f"neck.levels.0.{n}.*") for n in (0, 1, 3)),
    Rule("backbone.simfp_3.0.*", "neck.levels.1.0.*"),
    *(
        rule
        for level, first in enumerate((4, 1, 0, 1))  # of the two convolutions after those that enlarge
        for n in (0, 1)
        for rule in _conv(
            f"backbone.simfp_{level + 2}.{first + n}", *(f"neck.convs.{level}.{i}" for i in (2 * n, 2 * n + 1))
        )
    ),
    Rule(f"{_RPN}.conv.conv{{i}}.*", "rpn_head.rpn_conv.{i}.conv.*"),
    Rule(f"{_RPN}.objectness_logits.*", "rpn_head.rpn_cls.*"),
    Rule(f"{_RPN}.anchor_deltas.*", "rpn_head.rpn_reg.*"),
    *_conv(f"{_BOXES}.conv{{i+1}}", *(f"roi_head.bbox_head.{{k}}.shared_convs.{{i}}.{x}" for x in ("conv", "ln"))),
    Rule(f"{_BOXES}.fc{{i+1}}.*", "roi_head.bbox_head.{k}.shared_fcs.{i}.*"),
    Rule("roi_heads.box_predictor.{k}.cls_score.*", "roi_head.bbox_head.{k}.fc_cls.*"),
    Rule("roi_heads.box_predictor.{k}.bbox_pred.*", "roi_head.bbox_head.{k}.fc_reg.*"),
    *_conv(f"{_MASKS}.mask_fcn{{i+1}}", *(f"roi_head.mask_head.convs.{{i}}.{x}" for x in ("conv", "ln"))),
    Rule(f"{_MASKS}.deconv.*", "roi_head.mask_head.upsample.*"),
    Rule(f"{_MASKS}.predictor.*", "roi_head.mask_head.conv_logits.*"),
)
