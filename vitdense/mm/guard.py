"""What mm leaves open in the predictions of its models."""

from typing import Any

import torch
from mmengine.config import ConfigDict
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

HALF = (torch.float16, torch.bfloat16)
# Heads of queries of mmdet, by the names of their classes; another project's may have other attributes.
QUERY_HEADS = {"bbox_head": "DETRHead", "roi_head": "SparseRoIHead", "panoptic_fusion_head": "MaskFormerFusionHead"}


def guard_model(model: nn.Module) -> nn.Module:
    """The model of mm, which may be wrapped, as it is, with places in float32 and results that are valid.

    Half types have fewer places than images have pixels, bfloat16 every 4th from 512 on. mmdet makes or casts anchors,
    points, proposals, RoIs, reference points and boxes in the data type of what lies next to them, so under autocast
    hooks of its modules widen that; layers compute in half precision as before:

    - outputs of dense heads and box heads: anchors and points get their type, and boxes are decoded in it;
    - maps that RoIs are cast to or that give learned proposals the size of the image, and values that the sampling
      locations of deformable attention are cast to;
    - outputs of layers that predict a point or a box, 2 or 4 numbers: heads of queries add references to them in place.

    Results are in float32: metrics, tiles and pictures go on with NumPy, which has no bfloat16. Boxes of negative width
    or height, of which metrics and pictures make nonsense, are left out. Where queries and classes have fewer pairs
    than results are asked for, all are.

    `build_model` calls this for every model, and `GuardModelHook` where another runner runs a recipe; who runs a model
    of mmdet's ``init_detector`` under autocast calls it himself.
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
    """The detector or segmentor inside of wrappers: of processes, of test-time augmentation."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _widen(layer: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output.float() if output.dtype in HALF else output


# Under autocast only: in a model that is in half precision itself, the next layer takes nothing else.


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF and torch.is_autocast_enabled(x.device.type) else x


def _widen_under_autocast(module: nn.Module, args: tuple, outputs: Any) -> Any:
    return tree_map_only(Tensor, _wide, outputs)


def _widen_inputs_under_autocast(module: nn.Module, args: tuple) -> tuple:
    return tree_map_only(Tensor, _wide, args)


def _valid_results(model: nn.Module, args: tuple, outputs: Any) -> None:
    samples = outputs if isinstance(outputs, list) else []  # otherwise losses or maps
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
    """Lower `max_per_img` of heads of queries to the pairs of a query and a class, or to the queries without pairs."""
    counts = ((detector, "num_queries"), (children.get("rpn_head"), "num_proposals"))
    counts = (*counts, (children.get("panoptic_head"), "num_queries"))
    number = next((getattr(part, name) for part, name in counts if hasattr(part, name)), None)
    for key, kind in QUERY_HEADS.items() if number else ():
        head = children.get(key)
        if kind not in (base.__name__ for base in type(head).__mro__):
            continue
        stages = getattr(head, "bbox_head", [head])  # of Sparse R-CNN
        pairs = number * stages[-1].num_classes
        if key == "bbox_head" and not head.loss_cls.use_sigmoid:
            pairs = number
        for limit in ("max_per_img", "max_per_image"):
            if (head.test_cfg or {}).get(limit, 100 if limit == "max_per_image" else 0) > pairs:
                head.test_cfg = ConfigDict(head.test_cfg, **{limit: pairs})
