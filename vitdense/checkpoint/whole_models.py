"""Whole detectors and segmentors, also of EoMT, PMT, RF-DETR and LW-DETR, and detectron2's ViTDet."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from vitdense.checkpoint.detect import Match, detect, unwrap
from vitdense.checkpoint.errors import CheckpointMismatchError, naming_option
from vitdense.checkpoint.fit import LoadReport, fresh_pattern, match_exactly, spread, stem_weight, transfer
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.rename import Rule, rename
from vitdense.checkpoint.schemes import PERIODS
from vitdense.errors import OptionError

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
NEAR_ZERO = 0.1  # largest mean of a norm's weights in a file of differences
DIFFERENCES = "eomt_dinov3"  # scheme of trunks that EoMT's authors publish as differences to DINOv3


def _table(keys: Iterable[str]) -> Table | None:
    """The table for a file with these keys: a whole EoMT, PMT or RF-DETR, by the authors or by transformers."""
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
    """A whole model with the prefixes of mm's models: ``backbone.``, `head`, and RF-DETR's.

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


def load_base(model: nn.Module, weights: str | Path, source: str) -> tuple[str, dict[str, Tensor]]:
    """Load weights, a file or a name of the model table, into the trunk of a model: where they are from, and they."""
    trunk = _trunk_of(model, source)
    with naming_option("default_hooks.exact_load.base"):
        report = load_pretrained(trunk, weights)
    return report.source, trunk.state_dict()


def _trunk_of(model: nn.Module, source: str) -> nn.Module:
    if not hasattr(trunk := getattr(model, "backbone", None), "family"):
        raise CheckpointMismatchError(f"{source} needs a backbone of vitdense: give the config of its training")
    return trunk


def fit_whole(
    model: nn.Module,
    checkpoint: Mapping,
    fresh: Sequence[str] = (),
    source: str = "state dict",
    load: Callable[[], tuple[str, Mapping[str, Tensor]]] | None = None,
    channels: str | Sequence[int] | None = None,
) -> tuple[dict[str, Tensor], LoadReport]:
    """The tensors of a checkpoint that fill a whole detector or segmentor.

    Backbones of this project, and heads of EoMT, PMT and RF-DETR, may have any known naming scheme. Other parts must
    have the names of the model, as in checkpoints of mmdet and mmseg; or detectron2's names, in a detector with a
    simple feature pyramid.

    Args:
        source: Origin of the checkpoint, for the report.
        load: Calls `load_base`, for a checkpoint without a trunk (PMT), or with differences to one, which are added
            (EoMT on DINOv3, as published). It is not called for others, which are refused.
        channels: As of `load_pretrained`, for a backbone with other image channels than the file's.

    Raises:
        CheckpointMismatchError: The checkpoint does not fit exactly, needs a base, or has no use for it.
    """
    state = unwrap(checkpoint)
    if any(key.startswith("backbone.simfp_") for key in state):
        state = rename(state, DETECTOR)
    targets = model.state_dict()
    report = LoadReport(source, "own")
    backbones = ["backbone."]
    is_foreign = _table(state) is not None
    if is_foreign:
        _trunk_of(model, source)
        state, report.classes = with_named_outputs(state, trained_classes(checkpoint))
        state = split_parts(state, "decode_head." if hasattr(model, "decode_head") else "panoptic_head.")
    matches = {}  # start of the keys -> the module, and what the file has for it
    for name, module in model.named_modules():
        start = f"{name}." if name else ""
        is_inner = start.startswith(tuple(backbones[1:]))  # the trunk of a ViT-Adapter
        if not hasattr(module, "family") or is_inner or not any(key.startswith(start) for key in state):
            continue
        if hasattr(module, "stem_modules"):
            backbones.append(start)
        matches[start] = module, detect(state, (module.family,), prefix=start)
    origin, base = "", {}
    if load is not None or is_foreign:
        of_trunk = matches.get("backbone.", (None, None))[1]
        _check_base(of_trunk, load is not None, source)
        if load is not None:
            origin, base = load()
        if of_trunk is None:
            report.scheme = "the head alone"
            state = {f"backbone.{key}": x for key, x in base.items()} | state
    for start, (module, match) in matches.items():
        report.scheme = match.scheme.name if report.scheme == "own" else report.scheme
        part = LoadReport(source, report.scheme)
        ours = transfer(match, module, part, is_whole=True)
        if base and start == "backbone.":
            ours = {key: x + ours[key] if key in ours else x for key, x in base.items()}
        stem = stem_weight(module) if channels is not None and hasattr(module, "stem_modules") else ""
        if stem in ours and ours[stem].shape[1] != module.in_channels:
            spread(ours, stem, channels, module.in_channels, report)
        state = {key: value for key, value in state.items() if not key.startswith(start)}
        state |= {start + key: value for key, value in ours.items()}
        report.resized |= {start + key: shapes for key, shapes in part.resized.items()}
        report.ignored += [start + key for key in part.ignored]
        report.queries = report.queries or part.queries

    def advise(refused: set[str], excused: set[str]) -> str:
        if any(key.startswith(tuple(backbones)) for key in refused):
            return f"The backbone of {source} has another arch or other options: give the config it was trained with. "
        pattern = fresh_pattern(refused | excused, (targets.keys() | state.keys()) - refused - excused)
        if pattern is None:
            return f"Give the config that {source} was trained with. "
        return (
            f"To train these parts anew, for other classes: vitdense train --fresh '{pattern}' (in a config: "
            f"default_hooks=dict(exact_load=dict(fresh=[r'{pattern}']))). Otherwise, give the config that {source} was "
            f"trained with. "
        )

    for pattern in fresh:
        if not any(re.fullmatch(pattern, key) for key in (*targets, *state)):
            raise OptionError(f"fresh: {pattern!r} matches no parameter of the model or of {source}")
    if base:
        report.scheme = f"{report.scheme}, with the trunk of {origin}"
    formulas = {key: x for key, x in targets.items() if is_foreign and re.fullmatch(rf".+\.{PERIODS}", key)}
    state = match_exactly(targets, formulas | state, fresh, advise)  # foreign files lack the formulas
    report.count(targets, state)
    return state, report


def _check_base(trunk: Match | None, has_base: bool, source: str) -> None:
    """Raise unless a file has a whole trunk, or a base is given that it needs; `trunk` is what it has."""
    is_whole = trunk is not None and not _are_differences(trunk, source)
    if is_whole and has_base:
        raise CheckpointMismatchError(f"base: got one, but {source} has the whole trunk; leave it out")
    if not is_whole and not has_base:
        has = "no trunk" if trunk is None else "differences to the weights of the trunk"
        raise CheckpointMismatchError(
            f"{source} has {has}: give the trunk's weights as base, a file or a name, in a "
            f"config default_hooks=dict(exact_load=dict(base=...))"
        )


def _are_differences(trunk: Match, source: str) -> bool:
    """Whether a trunk with the names of EoMT's authors has differences to the weights of DINOv3.

    Published files have differences, checkpoints of a training have weights. In norms, weights are near 1 and
    differences near 0; other values are refused.
    """
    if trunk.scheme.name != DIFFERENCES:
        return False
    sizes = sorted(x.float().abs().mean().item() for key, x in trunk.ours.items() if re.search(r"norm\d*\.weight", key))
    if sizes and sizes[-1] < NEAR_ZERO:
        return True
    if not sizes or sizes[0] < NEAR_ZERO or not 0.5 < sizes[len(sizes) // 2] < 2:
        found = f"from {sizes[0]:.3g} to {sizes[-1]:.3g}" if sizes else "missing"
        raise CheckpointMismatchError(
            f"{source}: the trunk's norms are {found}, expected near 1, of weights, or near 0, of differences to those "
            f"of DINOv3; give the file as its training or its authors saved it"
        )
    return False
