"""From the maps of mmdet's detectors to a fixed number of objects.

Steps of `predict` whose shapes depend on the content of an image are reimplemented here, for a whole batch; all others
are mmdet's own. B images, N objects, K RoIs (image, x1, y1, x2, y2) in pixels of the input.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import RPNHead
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.detectors import SparseRCNN
from mmdet.models.roi_heads import CascadeRoIHead, SparseRoIHead, StandardRoIHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from torch import Tensor, nn

from vitdense.export.select import Found, best, clip, corners, pack, sides, suppress, take
from vitdense.mm.errors import ConfigError
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.seams import ask

# Pairs of a box and a class per image that enter the last NMS; mmdet takes all above `score_thr`.
CANDIDATES = 2000


def fix(model: nn.Module) -> None:
    """Replace modules of mm whose shapes depend on values of tensors. May be called twice."""
    forms = {SingleRoIExtractor: FixedRoIExtractor, **(ask("export", "forms") or {})}
    for module in list(model.modules()):
        for name, child in module.named_children():
            for kind, fixed in forms.items():
                if isinstance(child, kind) and not isinstance(module, fixed):
                    setattr(module, name, fixed(child).train(child.training))


def pad_as(model: nn.Module, image: Tensor) -> Tensor:
    return pad(image, model.data_preprocessor.pad_size_divisor, float(model.data_preprocessor.pad_value))


def pad(image: Tensor, divisor: int, value: float) -> Tensor:
    """Pad an image ``[B, 3, h, w]`` right and bottom to sides that are multiples of the divisor."""
    bottom, right = ((side + divisor - 1) // divisor * divisor - side for side in image.shape[2:])
    return F.pad(image, (0, right, 0, bottom), value=value)


Objects = tuple[Found, dict[str, Tensor]]  # objects, and their masks or keypoints by name, see `tasks.Detector`
Finder = Callable[[nn.Module, Sequence[Tensor], tuple[int, int]], Objects]


def finder(model: nn.Module) -> Finder:
    """A function from (model, maps, size of the image) to `Objects`; a ConfigError for an unknown head."""
    if found := ask("export", "finder", model):
        return found
    roi_head, dense = getattr(model, "roi_head", None), getattr(model, "bbox_head", None)
    if isinstance(model, SparseRCNN) and type(roi_head) is SparseRoIHead and not roi_head.with_mask:
        return _of_sparse
    if isinstance(roi_head, (StandardRoIHead, CascadeRoIHead)) and not isinstance(roi_head, SparseRoIHead):
        masks = roi_head.mask_head if roi_head.with_mask else []
        masks = masks if isinstance(masks, nn.ModuleList) else [masks] if masks else []
        if isinstance(model.rpn_head, RPNHead) and all(isinstance(head, FCNMaskHead) for head in masks):
            _threshold(roi_head.test_cfg.nms)
            return _of_rois
    if isinstance(dense, RFDETRHead):
        return _of_rfdetr
    if isinstance(dense, BaseDenseHead) and (
        type(dense)._predict_by_feat_single is BaseDenseHead._predict_by_feat_single
        and type(dense).predict_by_feat is BaseDenseHead.predict_by_feat
    ):
        _threshold(dense.test_cfg.nms)
        return lambda model, maps, size: (_of_dense(model.bbox_head, maps, size), {})
    heads = [type(head).__name__ for head in (roi_head, dense) if head is not None]
    raise ConfigError(
        f"export: got {type(model).__name__} with {' and '.join(heads) or 'no head'}, expected a dense head that "
        f"predicts as mmdet's base class, a RoI head (standard, cascade, HTC), Sparse R-CNN, RF-DETR, "
        f"or DINO with pad_size_divisor=1; add --maps for its maps alone"
    )


def _threshold(nms: dict) -> float:
    kind = nms.get("type", "nms")
    if kind != "nms":
        raise ConfigError(
            f"test_cfg: got nms of type {kind!r}, expected 'nms', the one that programs have; change it by "
            f"--cfg-options, for a two-stage detector model.test_cfg.rcnn.nms.type=nms"
        )
    return nms["iou_threshold"]


def _of_dense(head: nn.Module, maps: Sequence[Tensor], size: tuple[int, int]) -> Found:
    """Objects of a dense head; or proposals of an RPN, with NMS per level."""
    cfg, is_rpn = head.test_cfg, isinstance(head, RPNHead)
    scores, deltas, *factors = head(maps)
    sizes = [tuple(level.shape[2:]) for level in scores]
    priors = head.prior_generator.grid_priors(sizes, dtype=torch.float32, device=maps[0].device)
    classes = head.cls_out_channels
    kept: list[tuple[Tensor, ...]] = []
    for level, (logits, delta, prior) in enumerate(zip(scores, deltas, priors)):
        logits, delta = (_rows(x, width) for x, width in ((logits, classes), (delta, 4)))  # [B, n, classes], [B, n, 4]
        score = logits.sigmoid() if head.use_sigmoid_cls else logits.softmax(-1)[..., :-1]
        count = score.shape[2]
        score = score.flatten(1)  # [B, n * classes]
        if not is_rpn:
            score = torch.where(score > cfg.get("score_thr", 0), score, -1.0)
        score, pair = best(score, cfg.nms_pre)  # [B, k]
        place = pair // count
        box = _decode(head.bbox_coder, prior[place.flatten()], take(delta, place), size)  # [B, k, 4]
        if factors:
            factor = take(_rows(factors[0][level], 1), place)[..., 0].sigmoid()  # [B, k]
            score = torch.where(score > 0, score * factor, score)
        kept.append((box, score, torch.full_like(pair, level) if is_rpn else pair % count))
    boxes, scores, labels = (torch.cat(part, 1) for part in zip(*kept))
    if cfg.get("min_bbox_size", -1) >= 0:
        large = (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(-1)
        scores = torch.where(large, scores, -1.0)
    groups = len(kept) if is_rpn else classes
    return suppress(Found(boxes, scores, labels), groups, _threshold(cfg.nms), cfg.max_per_img)


def _rows(x: Tensor, width: int) -> Tensor:
    """``[B, anchors * width, h, w]`` to ``[B, h * w * anchors, width]``, float32."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, width).float()


def _decode(coder: nn.Module, priors: Tensor, deltas: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes ``[B, n, 4]``, clipped to the image, from priors ``[B * n, 4 or 2]`` and deltas ``[B, n, 4]``."""
    return coder.decode(priors, deltas.flatten(0, 1), max_shape=size).unflatten(0, deltas.shape[:2])


def _rois(boxes: Tensor) -> Tensor:
    image = torch.arange(boxes.shape[0], device=boxes.device, dtype=boxes.dtype)  # [B]
    return torch.cat([image[:, None, None].expand(-1, boxes.shape[1], 1), boxes], -1).flatten(0, 1)


def _of_rois(model: nn.Module, maps: Sequence[Tensor], size: tuple[int, int]) -> Objects:
    """Objects of a two-stage detector. mmdet's own steps see the batch as one image; RoIs have the image index."""
    head, meta = model.roi_head, {"img_shape": size}
    proposals = _of_dense(model.rpn_head, maps, size)
    batch, count = proposals.scores.shape
    rois, options = _rois(proposals.boxes), {}  # [K, 5]
    if getattr(head, "with_semantic", False):
        options["semantic_feat"] = head.semantic_head(maps)[1]
    if isinstance(head, CascadeRoIHead):
        (rois,), (logits,), (deltas,) = head._refine_roi(maps, rois, [meta], (batch * count,), **options)
        last = head.bbox_head[-1]
    else:
        results, last = head._bbox_forward(maps, rois), head.bbox_head
        logits, deltas = results["cls_score"], results["bbox_pred"]
    logits = logits.float()
    scores = last.loss_cls.get_activation(logits) if last.custom_cls_channels else logits.softmax(-1)
    scores = scores[:, :-1].unflatten(0, (batch, count))  # [B, n, classes]
    classes = scores.shape[2]
    usable = (scores > head.test_cfg.score_thr) & (proposals.scores > 0)[..., None]
    scores, pair = best(torch.where(usable, scores, -1.0).flatten(1), CANDIDATES)  # [B, k]
    deltas = deltas.float().reshape(batch, -1, 4)  # [B, n or n * classes, 4]
    deltas = take(deltas, pair // classes if last.reg_class_agnostic else pair)  # [B, k, 4]
    origins = take(rois[:, 1:].unflatten(0, (batch, count)), pair // classes)  # [B, k, 4]
    boxes = _decode(last.bbox_coder, origins.flatten(0, 1), deltas, size)  # [B, k, 4]
    candidates = Found(boxes, scores, pair % classes)
    found = suppress(candidates, classes, _threshold(head.test_cfg.nms), head.test_cfg.max_per_img)
    return found, {"masks": _masks(head, maps, found, options)} if head.with_mask else {}


def _masks(head: nn.Module, maps: Sequence[Tensor], found: Found, options: dict) -> Tensor:
    """Mask probabilities within boxes, ``[B, N, 28, 28]``, the mean over stages."""
    rois = _rois(found.boxes)
    if not isinstance(head.mask_head, nn.ModuleList):
        stages = [head._mask_forward(maps, rois)["mask_preds"]]
    elif hasattr(head, "with_semantic"):  # HTC: each mask head passes features on to the next
        stages = head._mask_forward(-1, maps, rois, training=False, **options)["mask_preds"]
    else:
        stages = [head._mask_forward(stage, maps, rois)["mask_preds"] for stage in range(head.num_stages)]
    masks = torch.stack([stage.float().sigmoid() for stage in stages]).mean(0)  # [K, classes, 28, 28]
    masks = masks.unflatten(0, found.labels.shape)  # [B, N, classes, 28, 28]
    label = found.labels.clamp(min=0) if masks.shape[2] > 1 else torch.zeros_like(found.labels)
    index = label[..., None, None, None].expand(-1, -1, 1, *masks.shape[3:])
    return masks.gather(2, index)[:, :, 0]  # [B, N, 28, 28]


def _of_sparse(model: nn.Module, maps: Sequence[Tensor], size: tuple[int, int]) -> Objects:
    """Objects of Sparse R-CNN (Sun et al., CVPR 2021), without NMS."""
    head, queries, batch = model.roi_head, model.rpn_head, maps[0].shape[0]
    boxes = corners(queries.init_proposal_bboxes.weight, size).expand(batch, -1, -1)  # [B, N, 4]
    features = queries.init_proposal_features.weight.expand(batch, -1, -1)  # [B, N, C]
    for extractor, stage in zip(head.bbox_roi_extractor, head.bbox_head):
        rois = _rois(boxes)
        logits, deltas, features, _ = stage(extractor(maps[: extractor.num_inputs], rois), features)
        boxes = _decode(stage.bbox_coder, rois[:, 1:], deltas.float(), size)  # [B, N, 4]
    scores = logits.float().sigmoid() if stage.loss_cls.use_sigmoid else logits.float().softmax(-1)[..., :-1]
    classes, number = scores.shape[2], head.test_cfg.max_per_img
    scores, pair = best(scores.flatten(1), number)  # [B, max_per_img]
    boxes = take(boxes, pair // classes)
    is_box = (boxes[..., 2:] >= boxes[..., :2]).all(-1)  # `guard_model` drops the others after the selection
    scores, index = best(torch.where(is_box, scores, -1.0), number)
    return pack(take(boxes, index), scores, take(pair, index) % classes), {}


def _of_rfdetr(model: nn.Module, maps: Sequence[Tensor], size: tuple[int, int]) -> Objects:
    """Objects of RF-DETR, without NMS, and their mask logits ``[B, N, h, w]`` or keypoints ``[B, N, K, 3]``."""
    head = model.bbox_head
    (layer,) = head(maps)
    scores, labels, queries = head.best(layer)  # [B, N] each
    boxes = corners(take(layer.boxes, queries), head.extent(maps))  # [B, N, 4]
    found = pack(clip(boxes, size), scores, labels)
    if layer.more is not None:
        size = sides(head.extent(maps), boxes)[:2]
        return found, {head.more: head.shown(take(layer.more, queries), size)}
    if layer.masks is None:
        return found, {}
    return found, {"masks": layer.masks._replace(queries=take(layer.masks.queries, queries)).logits().float()}


class FixedRoIExtractor(nn.Module):
    """mmdet's `SingleRoIExtractor` with average RoIAlign, without shapes that depend on the boxes.

    Every level sees all RoIs. RoIs of other levels get no area, so no samples, and cost next to nothing.
    """

    def __init__(self, extractor: SingleRoIExtractor) -> None:
        super().__init__()
        self.num_inputs, self.map_roi_levels = extractor.num_inputs, extractor.map_roi_levels
        self.layers = list(extractor.roi_layers)
        for layer in self.layers:
            if type(layer).__name__ != "RoIAlign" or layer.pool_mode != "avg" or layer.sampling_ratio < 0:
                raise ConfigError(f"export: got the RoI layer {layer}, expected RoIAlign by the mean")

    def forward(self, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """Maps and RoIs [K, 5] to features ``[K, C, p, q]``."""
        rois = rois.float()  # half precision would round to whole pixels
        level_of = self.map_roi_levels(rois, len(maps))[:, None]  # [K, 1]
        total = None
        for level, (layer, x) in enumerate(zip(self.layers, maps)):
            here = level_of == level
            if layer.aligned and not layer.sampling_ratio:  # a RoI without area has no samples: 0, but NaN in OpenVINO
                edges = rois[:, 1:] * layer.spatial_scale - 0.5  # [K, 4], where a tiny side may be rounded away
                here = here & (edges[:, 2:] > edges[:, :2]).all(1, keepdim=True)  # [K, 1]
            own = torch.cat([rois[:, :1], torch.where(here, rois[:, 1:], 0.0)], 1)  # [K, 5]
            part = torch.ops.torchvision.roi_align(
                x.float(), own, layer.spatial_scale, *layer.output_size, layer.sampling_ratio, layer.aligned
            )  # [K, C, p, q]
            part = torch.where(here[..., None, None], part, 0.0)
            total = part if total is None else total + part
        return total.to(maps[0].dtype)
