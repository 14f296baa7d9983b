"""Another backbone in a config of mmdet or mmseg: what changes in its model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from vitdense.families import Model, arguments, backbone_class, find_model, near_names
from vitdense.mm.config.query import as_list, expected_preprocessor, find_class
from vitdense.mm.errors import ConfigError
from vitdense.models.base import Backbone
from vitdense.models.swin.model import Swin
from vitdense.models.swin.sizes import SWIN, SwinArch

SIDE = 128  # of the image, in pixels, that shows the strides of a backbone
PYRAMID = [4, 8, 16, 32]  # strides of a DeconvPyramid, from patches of 16
SWINS = ("SwinTransformer", "mmdet.SwinTransformer", "mmseg.SwinTransformer")
# Arguments of theirs that `vitdense.Swin` lacks, and the values that they must have.
NO_OPTIONS = {"qk_scale": None, "patch_norm": True, "drop_rate": 0, "attn_drop_rate": 0, "act_cfg": {"type": "GELU"}}
NO_OPTIONS |= {"norm_cfg": {"requires_grad": True, "type": "LN"}}
KEPT = {"frozen_stages": "all", "output_cls_token": True}  # options that the new backbone keeps


def model_changes(cfg: Config, name: str | None = None) -> dict[str, Any]:
    """The changes of a config's model for another backbone, for a config that inherits from it.

    The new backbone returns the same number of maps with the same strides. A plain ViT gets a `DeconvPyramid` for the
    strides 4, 8, 16 and 32.

    Args:
        cfg: The config; it is not changed.
        name: A name of the model table. None replaces a SwinTransformer of mmdet or mmseg by `vitdense.Swin` of the
            same sizes and options, which loads its checkpoints.

    Raises:
        ConfigError: The name is unknown, or the rest of the model does not fit the backbone.
    """
    model = cfg.model
    if not isinstance(model.get("backbone"), Mapping):
        raise ConfigError(f"got a model {model.get('type')} without `backbone`; write the lines for the one inside it")
    # Older configs have the weights of the backbone here, and mmseg would load them into the new one.
    pretrained = {"pretrained": None} if model.get("pretrained") else {}
    if name is None:
        return {**pretrained, "backbone": _same_swin(model, cfg)}
    row = find_model(name)
    if row is None:
        near = near_names(name) or "swin_tiny"
        raise ConfigError(f"--backbone: got {name!r}; expected a name of vitdense.list_models(), such as {near}")
    channels, strides = _maps(model.backbone, cfg)
    is_mmseg = cfg.get("default_scope") == "mmseg"
    backbone, new_channels, pyramid, patch = _named(name, row, strides, is_mmseg)
    backbone |= {key: value for key, value in KEPT.items() if model.backbone.get(key) == value}
    changes = channel_changes(model, channels, new_channels)
    old = model.get("data_preprocessor") or {}
    preprocessor = {key: value for key, value in expected_preprocessor(row).items() if value != old.get(key)}
    if pyramid is not None:
        neck = model.get("neck") or []
        after = [{**neck, **changes.get("neck", {})}] if isinstance(neck, dict) else changes.get("neck", neck)
        changes["neck"] = [pyramid, *after] if after else pyramid
        if is_mmseg:
            preprocessor["test_cfg"] = {"size_divisor": 2 * patch}  # whole patches
        elif old.get("pad_size_divisor", 1) % 16:
            preprocessor["pad_size_divisor"] = 32
    start = {"data_preprocessor": preprocessor} if preprocessor else {}
    return {**start, **pretrained, "backbone": backbone, **changes}


def _maps(backbone: Mapping, cfg: Config) -> tuple[list[int], list[int]]:
    """Channels and strides of the maps of a backbone. Our classes have both as attributes; others run once."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    if issubclass(find_class(MODELS, backbone["type"], cfg), Backbone):
        with torch.device("meta"):
            ours = MODELS.build({**backbone, "init_cfg": None})
        return list(ours.out_channels), list(ours.out_strides)
    built = MODELS.build({**backbone, "init_cfg": None})
    built.eval()  # mmdet's Swin returns None here
    with torch.no_grad():
        maps = built(torch.zeros(1, backbone.get("in_channels", 3), SIDE, SIDE))
    if not all(isinstance(x, Tensor) and x.ndim == 4 for x in maps):
        raise ConfigError(f"model.backbone: {backbone['type']} returns more than maps [B, C, H, W]; swap it by hand")
    return [x.shape[1] for x in maps], [SIDE // x.shape[-1] for x in maps]


def _named(name: str, row: Model, strides: list[int], any_patch: bool) -> tuple[dict, list[int], dict | None, int]:
    """The config of a backbone, its channels, the pyramid that a plain ViT needs, and the stride of its first map.

    `strides` are what the rest of the model expects; with `any_patch` it takes any, as segmentors do.
    """
    kind = backbone_class(row.family)
    with torch.device("meta"):
        trunk = kind(row.arch, **row.options)
    channels, own, is_plain = list(trunk.out_channels), list(trunk.out_strides), len(set(trunk.out_strides)) == 1
    if is_plain and own[0] != 16 and not any_patch:
        raise ConfigError(f"--backbone: {name} has patches of {own[0]} pixels, expected 16 (or 4)")
    options, pyramid = dict(row.options), None
    if is_plain and strides == PYRAMID:
        pyramid = {"type": "vitdense.DeconvPyramid", "in_channels": channels, "design": "light"}
    elif is_plain and set(strides) == {16} and len(strides) in (1, len(own)):  # the last maps
        options["out_indices"] = tuple(trunk.out_indices[-len(strides) :])
        channels = channels[-len(strides) :]
    elif strides != own:
        if strides != sorted({*strides} & {*own}) or is_plain:
            theirs = f"{PYRAMID}, all four, by a neck" if is_plain else own
            raise ConfigError(
                f"--backbone: the maps of the config's backbone have strides {strides}, of {name} {theirs}; choose "
                f"another backbone, or a config whose neck or heads take these strides"
            )
        options["out_indices"] = tuple(own.index(stride) for stride in strides)
        channels = [channels[i] for i in options["out_indices"]]
    backbone = {"_delete_": True, "type": f"vitdense.{row.family}", "arch": row.arch, **_not_default(kind, options)}
    backbone["drop_path_rate"] = arguments(kind)["drop_path_rate"]
    if row.weights:
        backbone["init_cfg"] = {"type": "Pretrained", "checkpoint": name}
    return backbone, channels, pyramid, own[0]


def _not_default(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    defaults = arguments(kind)
    return {key: value for key, value in options.items() if value != defaults[key]}


def _same_swin(model: Mapping, cfg: Config) -> dict[str, Any]:
    """`vitdense.Swin` with the sizes and options of the SwinTransformer of a model."""
    if model["backbone"]["type"] not in SWINS:
        got = f"got none for a config with {model['backbone']['type']}, which is no SwinTransformer of mmdet or mmseg"
        raise ConfigError(f"--backbone: {got}; name one of vitdense.list_models(), such as swin_tiny")
    kind = find_class(MODELS, model["backbone"]["type"], cfg)
    options = arguments(kind)
    options |= {key: tuple(value) if isinstance(value, list) else value for key, value in model["backbone"].items()}
    options["norm_cfg"] = {"requires_grad": True, **options["norm_cfg"]}
    expected = {**NO_OPTIONS, "strides": (options["patch_size"], *[2] * (len(options["depths"]) - 1))}
    for key, value in expected.items():
        if options[key] != value:
            raise ConfigError(f"model.backbone.{key}: got {options[key]!r}, expected {value!r}; swap it by hand")
    weights = options["pretrained"] or model.get("pretrained")
    options["init_cfg"] = {"type": "Pretrained", "checkpoint": weights} if weights else options["init_cfg"]
    options["absolute_position"] = options["use_abs_pos_embed"]
    arch = SwinArch(options["embed_dims"], options["depths"], options["num_heads"])
    named = [name for name, row in SWIN.items() if row == arch]
    arch = named[0] if named else {key: options[key] for key in ("embed_dims", "depths", "num_heads")}
    ours = arguments(Swin)
    kept = _not_default(Swin, {key: value for key, value in options.items() if key in ours})
    return {"_delete_": True, "type": "vitdense.Swin", "arch": arch, **kept}


def channel_changes(model: Mapping, old: Sequence[int], new: Sequence[int]) -> dict[str, Any]:
    """What changes in the neck, or else the heads, for `new` channels of the backbone's maps in place of `old`."""
    keys = ["neck"] if model.get("neck") else [key for key in model if key.endswith("_head") and model[key]]
    changes = {}
    for key in keys:
        parts = as_list(model[key])
        first = parts[:1] if key == "neck" else parts  # later necks take the maps of the first
        changed = [_part_changes(f"model.{key}", part, list(old), list(new)) for part in first]
        if any(changed):
            is_list = isinstance(model[key], (list, tuple))  # a config inherits lists whole
            merged = [{**part, **change} for part, change in zip(parts, changed)] + parts[len(first) :]
            changes[key] = merged if is_list else changed[0]
    return changes


def _part_changes(where: str, part: Mapping, old: list[int], new: list[int]) -> dict[str, Any]:
    """What changes in a neck or head; in its parts if it has no `in_channels`, as K-Net's."""
    wanted, index = part.get("in_channels"), part.get("in_index")
    if wanted is None:
        parts = {key: value for key, value in part.items() if isinstance(value, Mapping)}
        inner = {key: _part_changes(f"{where}.{key}", value, old, new) for key, value in parts.items()}
        return {key: value for key, value in inner.items() if value}
    if isinstance(wanted, int):
        index = -1 if index is None else index  # the last map
        before, after = old[index], new[index]
    else:
        wanted = list(wanted)
        order = range(len(old)) if wanted == old else reversed(range(len(old)))  # some necks start at the last map
        index = list(order) if index is None else index
        before, after = [old[i] for i in index], [new[i] for i in index]
    if wanted != before:
        got = f"got {wanted}, expected {before}, for the backbone's maps have {old} channels"
        raise ConfigError(f"{where}.in_channels: {got}; write this part by hand, for the new maps, which have {new}")
    if after == before:
        return {}
    changes: dict[str, Any] = {"in_channels": after}
    if isinstance(before, list) and part.get("embed_dims") == before[0]:  # DPT repeats the channels
        changes["embed_dims"] = after[0]
    return changes
