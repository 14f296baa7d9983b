"""Whole files of EoMT, PMT, RF-DETR and LW-DETR, and of a PMT's head alone: of which part of the model a key is."""

import argparse
import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError

Table = Mapping[str, str | None]  # regular expressions of keys, and the part of the model; None: not needed there

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
    r".+\.mask_token|_kp_active_mask": None,  # of DINOv2's pretraining; of a model with keypoints
    r"backbone\.0\.encoder\.(encoder\.)?(?P<tail>.+)": "backbone.",
    r"backbone\.0\.projector\.(?P<tail>.+)": "neck.",
    r"(?P<tail>(transformer|refpoint_embed|query_feat|class_embed|bbox_embed|segmentation_head)\..+)": "bbox_head.",
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
# RF-DETR's layers with a row for every output.
CLASSES = r"(transformer\.enc_out_)?class_embed(\.\d+)?\.(weight|bias)"
COCO = ("person", "toothbrush", 80, 91)  # the first and the last name, names and outputs of a file for COCO's own ids
DIFFERENCES = "eomt_dinov3"  # the authors publish files with these names of the trunk as differences to DINOv3's


def is_whole(keys: Iterable[str]) -> bool:
    """Whether these are the keys of a whole file of the authors of one of these models, or of transformers."""
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


def split(state: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    """A whole file with the prefixes of mm's models, ``backbone.``, `head`, and RF-DETR's; see `is_whole`.

    Keys that the table does not know stay as they are, and are refused as unexpected.
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

    The file lists names by output. If the ids of its data begin at 1, the first name is empty, and the output is of no
    class; so are the outputs after the last name.
    """
    args = checkpoint.get("args")
    options = vars(args) if isinstance(args, argparse.Namespace) else args
    names = options.get("class_names") if isinstance(options, Mapping) else None
    names = [names] if isinstance(names, str) else names if isinstance(names, (list, tuple)) else []
    return {i: name for i, name in enumerate(names) if isinstance(name, str) and name}


def with_named_outputs(state: Mapping[str, Tensor], names: Mapping[int, str]) -> tuple[dict[str, Tensor], str]:
    """An RF-DETR file with the outputs that have names alone, and in words which these are; see `trained_classes`.

    Raises:
        CheckpointMismatchError: There are more names than outputs.
    """
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
