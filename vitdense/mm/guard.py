"""Fixes of predictions of mm's models: coordinates in float32, valid boxes, limits of queries."""

from typing import Any

import torch
from mmengine.config import ConfigDict
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

HALF = (torch.float16, torch.bfloat16)
# mmdet's heads of queries, by class name; heads of other projects may have other attributes.
QUERY_HEADS = {"bbox_head": "DETRHead", "roi_head": "SparseRoIHead", "panoptic_fusion_head": "MaskFormerFusionHead"}


def guard_model(model: nn.Module) -> nn.Module:
    """Add hooks to a model of mm, in place, for coordinates in float32 and valid results; returns the model.

    Half types cannot represent all pixels of an image: bfloat16 has every 4th from 512 on. mmdet computes anchors,
    points, proposals, RoIs, reference points and boxes in the data type of neighbouring tensors. So under autocast
    hooks cast these tensors to float32; layers still compute in half precision:

    - outputs of dense heads and box heads, which give anchors, points and decoded boxes their type;
    - maps of RoIs and of learned proposals, and the values of deformable attention;
    - outputs of layers that predict a point or a box (2 or 4 numbers), to which heads of queries add references.

    Results are in float32, because NumPy has no bfloat16, without boxes of negative width or height. If a model has
    fewer pairs of queries and classes than the number of results, all pairs are returned.

    `build_model` and `GuardModelHook` call this. Call it yourself for a model of mmdet's ``init_detector`` under
    autocast.
    """
    inner = unwrapped(model)
    if _valid_results in inner._forward_hooks.values():
        return model
    inner.register_forward_hook(_valid_results)
    for part in inner.modules():
        children = dict(part.named_children())
        _ask_for_what_there_is(part, children)
        if hasattr(part, "prior_generator") or hasattr(part, "bbox_coder"):
            part.register_forward_hook(_widen_under_autocast)
        if hasattr(part, "roi_layers"):
            part.register_forward_pre_hook(_widen_inputs_under_autocast)
        if hasattr(part, "im2col_step") and "value_proj" in children:  # mmcv's multi-scale deformable attention
            part.value_proj.register_forward_hook(_widen_under_autocast)
        if hasattr(children.get("rpn_head"), "init_proposal_bboxes") and "neck" in children:
            part.neck.register_forward_hook(_widen_under_autocast)
        if "bbox_head" in children:
            part.bbox_head.register_forward_hook(_widen_under_autocast)
            for name, layer in part.named_modules():
                size = getattr(layer, "out_features", getattr(layer, "out_channels", None))
                if isinstance(layer, nn.Linear | nn.Conv2d) and size in (2, 4) and "backbone" not in name.split("."):
                    layer.register_forward_hook(_widen)
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """The detector or segmentor inside of wrappers for processes or test-time augmentation."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _widen(layer: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output.float() if output.dtype in HALF else output


# Only under autocast: if the model itself is in half precision, the next layer needs that type.


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF and torch.is_autocast_enabled(x.device.type) else x


def _widen_under_autocast(module: nn.Module, args: tuple, outputs: Any) -> Any:
    return tree_map_only(Tensor, _wide, outputs)


def _widen_inputs_under_autocast(module: nn.Module, args: tuple) -> tuple:
    return tree_map_only(Tensor, _wide, args)


def _valid_results(model: nn.Module, args: tuple, outputs: Any) -> None:
    samples = outputs if isinstance(outputs, list) else []  # else losses or maps
    for sample in (sample for sample in samples if isinstance(sample, BaseDataElement)):
        for key, part in list(sample.items()):
            for name, value in part.items() if isinstance(part, BaseDataElement) else ():
                if isinstance(value, Tensor) and value.is_floating_point():
                    setattr(part, name, value.float())
            if key == "pred_instances" and isinstance(part.get("bboxes"), Tensor):
                kept = (part.bboxes[:, 2:] >= part.bboxes[:, :2]).all(1)  # [N]
                if not kept.all():
                    setattr(sample, key, part[kept])


def _ask_for_what_there_is(detector: nn.Module, children: dict[str, nn.Module]) -> None:
    """Limit `max_per_img` of heads of queries to the number of pairs of a query and a class, or of queries."""
    counts = ((detector, "num_queries"), (children.get("rpn_head"), "num_proposals"))
    counts = (*counts, (children.get("panoptic_head"), "num_queries"))
    number = next((getattr(part, name) for part, name in counts if hasattr(part, name)), None)
    for key, kind in QUERY_HEADS.items() if number else ():
        head = children.get(key)
        if kind not in (base.__name__ for base in type(head).__mro__):
            continue
        stages = getattr(head, "bbox_head", [head])  # Sparse R-CNN has several
        pairs = number * stages[-1].num_classes
        if key == "bbox_head" and not head.loss_cls.use_sigmoid:
            pairs = number
        for limit in ("max_per_img", "max_per_image"):
            if (head.test_cfg or {}).get(limit, 100 if limit == "max_per_image" else 0) > pairs:
                head.test_cfg = ConfigDict(head.test_cfg, **{limit: pairs})
