"""The head of RepPoints V2 (Chen et al. 2020) as the Swin authors train it: with quality focal and GIoU losses."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmcv.ops import CornerPool
from mmdet.models.dense_heads.base_dense_head import BaseDenseHead
from mmdet.models.layers import multiclass_nms
from mmdet.models.losses import GaussianFocalLoss, QualityFocalLoss, SmoothL1Loss
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator
from mmdet.models.utils import multi_apply
from mmdet.structures.bbox import bbox_overlaps, scale_boxes
from mmengine.model import bias_init_with_prob, normal_init
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torchvision.ops import DeformConv2d

from vitdense.errors import OptionError
from vitdense.mm.registry import MODELS
from vitdense.research.reppoints_v2.targets import (
    POINT_SCALE,
    assign_atss,
    assign_init,
    corner_targets,
    gaussian_radius,
    semantic_weights,
)

NUM_POINTS = 9  # of a set, like the samples of a 3x3 kernel
GRADIENT_MUL = 0.1  # from the deformable convolutions into the points that they sample
LOSS_WEIGHTS = {"cls": 1.0, "pts_init": 1.0, "pts_refine": 2.0, "heatmap": 0.25, "offset": 1.0, "sem": 0.1}

_conv_gn_relu = partial(ConvModule, norm_cfg=dict(type="GN", num_groups=32))


def giou_loss_plus_one(boxes: Tensor, targets: Tensor) -> Tensor:
    """GIoU loss [n] of boxes [n, 4] with 1 added to every width and height, in units of the boxes.

    The head's unit is 4 strides, so 1 is large. It also gives slightly inverted boxes an area.
    """
    shared = torch.cat([torch.maximum(boxes[:, :2], targets[:, :2]), torch.minimum(boxes[:, 2:], targets[:, 2:])], 1)
    hull = torch.cat([torch.minimum(boxes[:, :2], targets[:, :2]), torch.maximum(boxes[:, 2:], targets[:, 2:])], 1)
    sides = [x[:, 2:] - x[:, :2] + 1 for x in (boxes, targets, shared, hull)]
    overlap, enclosure = (side.clamp(min=0).prod(1) for side in sides[2:])
    union, enclosure = sides[0].prod(1) + sides[1].prod(1) - overlap + 1e-6, enclosure + 1e-6
    return 1 - overlap / union + (enclosure - union) / enclosure


def semantic_focal_loss(logits: Tensor, weights: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Focal loss of the semantic map, a scalar. Cells with a weight above 0 are positive; weights [..] as logits.

    Positives are averaged by their weights, negatives are divided by the number of positives.
    """
    probability, positive = logits.sigmoid(), weights > 0
    positives = alpha * (1 - probability) ** gamma * -F.logsigmoid(logits) * weights
    negatives = (1 - alpha) * probability**gamma * -F.logsigmoid(-logits) * ~positive
    tiny = torch.finfo(weights.dtype).tiny  # without positives, both divisors would be 0
    return positives.sum() / weights.sum().clamp(min=tiny) + negatives.sum() / positive.sum().clamp(min=1)


class CornerPooling(nn.Module):
    """Corner pooling (CornerNet): the sum of maxima along two directions and the input.

    Directions are modes of mmcv's `CornerPool`. Modules have the names of the authors' weights.
    """

    def __init__(self, channels: int, corner_dim: int, directions: tuple[str, str]) -> None:
        super().__init__()
        self.p1_conv1 = _conv_gn_relu(channels, corner_dim, 3, padding=1)
        self.p2_conv1 = _conv_gn_relu(channels, corner_dim, 3, padding=1)
        self.pool1, self.pool2 = (CornerPool(direction) for direction in directions)
        self.p_conv1 = nn.Conv2d(corner_dim, channels, 3, padding=1, bias=False)
        self.p_gn1 = nn.GroupNorm(32, channels)
        self.conv1 = nn.Conv2d(channels, channels, 1, bias=False)
        self.gn1 = nn.GroupNorm(32, channels)
        self.conv2 = _conv_gn_relu(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, h, w]`` to the same shape."""
        pooled = self.pool1(self.p1_conv1(x)) + self.pool2(self.p2_conv1(x))  # [B, corner_dim, h, w]
        return self.conv2(F.relu(self.p_gn1(self.p_conv1(pooled)) + self.gn1(self.conv1(x))))  # [B, C, h, w]


@MODELS.register_module()
class RepPointsV2Head(BaseDenseHead):
    """RepPoints V2: point sets with corner heatmaps and a semantic map of the boxes as verification tasks.

    Each cell has 9 points; the first is the top-left corner of its box, the second the bottom-right one. Deformable
    convolutions sample the map at a first set of points and refine it. Modules have the names of the authors' weights.
    Use this head with mmdet's ``RepPointsDetector``.

    Args:
        num_classes: Classes without the background.
        in_channels: Channels of every input map.
        feat_channels: Channels of the branches, a multiple of 32, like the next two.
        point_feat_channels: Channels of the deformable convolutions.
        corner_dim: Channels of the pooled maps of corners.
        stacked_convs: 3x3 convolutions of the branches of classes and of points.
        strides: Strides of the maps in pixels, each twice the one before.
        loss_weights: Factor of every loss, as in `LOSS_WEIGHTS`.
        train_cfg: ``topk`` of ATSS, and ``gaussian_iou``, the least IoU of boxes with corners in the Gaussians.
        test_cfg: ``nms_pre`` (points of a level), ``score_thr``, ``nms`` and ``max_per_img``.

    Raises:
        ValueError: `loss_weights` has other names.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        feat_channels: int = 256,
        point_feat_channels: int = 256,
        corner_dim: int = 64,
        stacked_convs: int = 3,
        strides: Sequence[int] = (8, 16, 32, 64, 128),
        loss_weights: Mapping[str, float] = LOSS_WEIGHTS,
        train_cfg: Mapping | None = None,
        test_cfg: Mapping | None = None,
    ) -> None:
        super().__init__()
        if loss_weights.keys() != LOSS_WEIGHTS.keys():
            raise OptionError(f"loss_weights: got {', '.join(loss_weights)}, expected {', '.join(LOSS_WEIGHTS)}")
        self.num_classes, self.loss_weights = num_classes, dict(loss_weights)
        self.train_cfg, self.test_cfg = train_cfg, test_cfg
        self.prior_generator = MlvlPointGenerator(strides, offset=0)  # points are the top-left corners of cells
        widths = [in_channels, *[feat_channels] * stacked_convs]

        def tower() -> nn.Sequential:
            return nn.Sequential(*(_conv_gn_relu(*pair, 3, padding=1) for pair in pairwise(widths)))

        self.cls_convs, self.reg_convs = tower(), tower()
        self.shared_convs = nn.Sequential(_conv_gn_relu(feat_channels, feat_channels, 3, padding=1))
        self.reppoints_sem_out = nn.Conv2d(feat_channels, num_classes, 1)
        self.reppoints_sem_embedding = _conv_gn_relu(feat_channels, feat_channels, 1)
        self.hem_tl = CornerPooling(feat_channels, corner_dim, ("top", "left"))
        self.hem_br = CornerPooling(feat_channels, corner_dim, ("bottom", "right"))
        self.reppoints_hem_tl_score_out = nn.Conv2d(feat_channels, 1, 3, padding=1)
        self.reppoints_hem_br_score_out = nn.Conv2d(feat_channels, 1, 3, padding=1)
        self.reppoints_hem_tl_offset_out = nn.Conv2d(feat_channels, 2, 3, padding=1)
        self.reppoints_hem_br_offset_out = nn.Conv2d(feat_channels, 2, 3, padding=1)
        self.reppoints_pts_init_conv = nn.Conv2d(feat_channels, point_feat_channels, 3, padding=1)
        self.reppoints_pts_init_out = nn.Conv2d(point_feat_channels, 2 * NUM_POINTS, 1)
        verified = feat_channels + 6  # two corner scores, two offsets (x, y)
        self.reppoints_cls_conv = DeformConv2d(verified, point_feat_channels, 3, padding=1, bias=False)
        self.reppoints_cls_out = nn.Conv2d(point_feat_channels, num_classes, 1)
        self.reppoints_pts_refine_conv = DeformConv2d(verified, point_feat_channels, 3, padding=1, bias=False)
        self.reppoints_pts_refine_out = nn.Conv2d(point_feat_channels, 2 * NUM_POINTS, 1)

        steps = torch.arange(-1.0, 2.0)
        kernel = torch.cartesian_prod(steps, steps).view(1, 2 * NUM_POINTS, 1, 1)  # (y, x) of a 3x3 kernel
        self.register_buffer("kernel", kernel, persistent=False)
        self.loss_cls = QualityFocalLoss(beta=2.0)
        self.loss_heatmap = GaussianFocalLoss(alpha=2.0, gamma=4.0, reduction="sum")
        self.loss_offset = SmoothL1Loss(beta=1 / 9, reduction="sum")

    def init_weights(self) -> None:
        """Normal with std 0.01, and initial probability 0.01 for classes and corners; other modules keep theirs."""
        super().init_weights()
        prior = bias_init_with_prob(0.01)
        scores = ("cls_out", "sem_out", "score_out")
        for name, module in self.named_modules():
            is_conv = isinstance(module, nn.Conv2d | DeformConv2d)
            if is_conv and not name.startswith(("hem_", "reppoints_sem_embedding")):
                normal_init(module, std=0.01, bias=prior if name.endswith(scores) else 0)

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Six outputs of every map ``[B, C, h, w]``, all raw: lists with one map ``[B, channels, h, w]`` per level.

        They are class logits [num_classes]; first and refined points [18], 9 pairs (y, x) in strides from the cell's
        top-left corner, in float32; corner logits [2], top-left and bottom-right; corner offsets [4], (x, y) of each in
        strides; semantic logits [num_classes].
        """
        return multi_apply(self.forward_single, maps)

    def forward_single(self, x: Tensor) -> tuple[Tensor, ...]:
        classes, points = self.cls_convs(x), self.reg_convs(x)
        shared = self.shared_convs(points)
        semantic = self.reppoints_sem_out(shared)  # [B, num_classes, h, w]
        embedding = self.reppoints_sem_embedding(shared)
        classes, points, shared = classes + embedding, points + embedding, shared + embedding

        tl, br = self.hem_tl(shared), self.hem_br(shared)
        scores = [self.reppoints_hem_tl_score_out(tl), self.reppoints_hem_br_score_out(br)]
        offsets = [self.reppoints_hem_tl_offset_out(tl), self.reppoints_hem_br_offset_out(br)]
        corners = torch.cat(scores + offsets, 1)  # [B, 6, h, w]

        # Points in float32: half precision would move them by pixels. The deformable convolutions have one dtype.
        init = self.reppoints_pts_init_out(F.relu(self.reppoints_pts_init_conv(points))).float()  # [B, 18, h, w]
        fixed = init.detach()
        samples = GRADIENT_MUL * init + (1 - GRADIENT_MUL) * fixed - self.kernel
        classes = self.reppoints_cls_conv(torch.cat([classes, corners], 1).float(), samples)
        points = self.reppoints_pts_refine_conv(torch.cat([points, corners], 1).float(), samples)
        refine = self.reppoints_pts_refine_out(F.relu(points)).float() + fixed  # [B, 18, h, w]
        return self.reppoints_cls_out(F.relu(classes)), init, refine, *corners.split([2, 4], 1), semantic

    def loss_by_feat(
        self,
        cls_scores: Sequence[Tensor],
        pts_init: Sequence[Tensor],
        pts_refine: Sequence[Tensor],
        hm_scores: Sequence[Tensor],
        hm_offsets: Sequence[Tensor],
        sem_scores: Sequence[Tensor],
        batch_gt_instances: Sequence[InstanceData],
        batch_img_metas: Sequence[dict],
        batch_gt_instances_ignore: Sequence[InstanceData] | None = None,
    ) -> dict[str, Tensor]:
        """Losses of the outputs of `forward`. Boxes to ignore (crowds) have no effect, as in the authors' code.

        Every divisor is the number of positives, at least 1 in each image, in all images of this process.
        """
        sizes, points, counts = self._points(cls_scores)
        init, refine = (_boxes(x, points) for x in (pts_init, pts_refine))  # [B, N, 4]
        images = zip(init.detach(), batch_gt_instances, batch_img_metas)
        found = [self._targets(points, counts, sizes, *image) for image in images]
        target = {name: torch.stack([image[name] for image in found]) for name in found[0]}

        unit = POINT_SCALE * points[:, 2:].repeat(1, 2)  # [N, 4]
        losses = {}
        for name, boxes in (("init", init), ("refine", refine)):
            positive = target[name] > 0  # [B, N]
            loss = giou_loss_plus_one((boxes / unit)[positive], (target[f"{name}_boxes"] / unit)[positive])
            losses[f"pts_{name}"] = loss.sum() / _at_least_one(positive)
        positive = target["refine"] > 0
        quality = bbox_overlaps(refine.detach(), target["refine_boxes"], is_aligned=True) * positive  # [B, N]
        losses["cls"] = self.loss_cls(
            _flat(cls_scores).flatten(0, 1),
            (target["labels"].flatten(), quality.flatten()),
            weight=target["inside"].flatten(),
            avg_factor=_at_least_one(positive),
        )
        corners = target["heatmap"] == 1  # [B, N, 2]
        share = 0.5 / _at_least_one(corners)  # [2]: half of the loss for each corner
        losses["heatmap"] = self.loss_heatmap(
            _flat(hm_scores).sigmoid(), target["heatmap"], weight=target["inside"][..., None] * share
        )
        losses["offset"] = self.loss_offset(
            _flat(hm_offsets), target["offset"], weight=(corners * share).repeat_interleave(2, -1)
        )
        weights = [F.interpolate(target["semantic"], size) for size in sizes]  # [B, num_classes, h, w] each
        losses["sem"] = semantic_focal_loss(_flat(sem_scores), _flat(weights))
        return {f"loss_{name}": loss * self.loss_weights[name] for name, loss in losses.items()}

    def _points(self, maps: Sequence[Tensor]) -> tuple[list[torch.Size], Tensor, list[int]]:
        """Sizes of maps; points [N, 4] of all, (x, y, stride, stride) in pixels; their numbers."""
        sizes = [x.shape[2:] for x in maps]
        points = self.prior_generator.grid_priors(sizes, device=maps[0].device, with_stride=True)
        return sizes, torch.cat(points), [len(x) for x in points]

    def _targets(
        self,
        points: Tensor,
        counts: Sequence[int],
        sizes: Sequence[torch.Size],
        boxes: Tensor,
        truth: InstanceData,
        meta: dict,
    ) -> dict[str, Tensor]:
        """Targets of one image with the first boxes [N, 4]."""
        flags = self.prior_generator.valid_flags(sizes, meta["pad_shape"], points.device)
        inside, n = torch.cat(flags), counts[0]
        init = assign_init(points, inside, truth.bboxes)
        refine = assign_atss(boxes, counts, inside, truth.bboxes, self.train_cfg["topk"])
        corners = truth.bboxes.view(-1, 2, 2)  # [G, 2, 2]
        radii = gaussian_radius(corners[:, 1] - corners[:, 0], self.train_cfg["gaussian_iou"])
        heatmaps, offsets = zip(*(corner_targets(points, counts, inside, corners[:, i], radii) for i in range(2)))
        semantic = semantic_weights(points[:n], inside[:n], truth.bboxes, truth.labels, self.num_classes)
        with_background = F.pad(truth.bboxes, (0, 0, 1, 0))  # [1 + G, 4]
        return {
            "inside": inside,  # [N]
            "init": init,  # [N]
            "init_boxes": with_background[init],  # [N, 4]
            "refine": refine,  # [N]
            "refine_boxes": with_background[refine],  # [N, 4]
            "labels": F.pad(truth.labels, (1, 0), value=self.num_classes)[refine],  # [N]
            "heatmap": torch.stack(heatmaps, 1),  # [N, 2]
            "offset": torch.cat(offsets, 1),  # [N, 4]
            "semantic": semantic.T.unflatten(1, sizes[0]),  # [num_classes, h, w]
        }

    def predict_by_feat(
        self,
        *outs: Sequence[Tensor],
        batch_img_metas: Sequence[dict],
        cfg: Mapping | None = None,
        rescale: bool = False,
    ) -> list[InstanceData]:
        """Boxes, scores and labels of every image after NMS; `cfg` replaces `test_cfg`.

        As in the authors' code, and unlike in mmdet's other heads, the best points of a level keep all their classes.
        Except on the finest level, corners move to the corners found in the heatmap of a finer level. Boxes without
        width or height, whose points are in the wrong order, are dropped.
        """
        cfg = cfg or self.test_cfg
        cls_scores, _, pts_refine, hm_scores, hm_offsets, _ = outs
        _, points, counts = self._points(cls_scores)
        all_boxes = _boxes(pts_refine, points).split(counts, 1)  # [B, n, 4] each
        all_scores = _flat(cls_scores).sigmoid().split(counts, 1)  # [B, n, num_classes] each
        results = []
        for i, meta in enumerate(batch_img_metas):
            found = []
            for level, (boxes, scores) in enumerate(zip(all_boxes, all_scores)):
                best = scores[i].amax(1).topk(min(cfg["nms_pre"], len(scores[i]))).indices
                boxes = _clamp(boxes[i, best], meta["img_shape"])  # [n, 4]
                if level > 0:
                    finer = (level - 1) // 2  # stride 8 for the levels 1 and 2, 16 for 3 and 4
                    stride = self.prior_generator.strides[finer][0]
                    boxes = refine_corners(boxes, hm_scores[finer][i], hm_offsets[finer][i].float(), stride)
                    boxes = _clamp(boxes, meta["img_shape"])
                found.append((boxes, scores[i, best]))
            boxes, scores = map(torch.cat, zip(*found))  # [n, 4], [n, num_classes]
            large = (boxes[:, 2:] - boxes[:, :2] > cfg.get("min_bbox_size", 0)).all(1)  # [n]
            boxes, scores = boxes[large], scores[large]
            if rescale:
                boxes = scale_boxes(boxes, [1 / factor for factor in meta["scale_factor"]])
            no_background = F.pad(scores, (0, 1))  # [n, num_classes + 1]
            boxes, labels = multiclass_nms(boxes, no_background, cfg["score_thr"], cfg["nms"], cfg["max_per_img"])
            results.append(InstanceData(bboxes=boxes[:, :4], scores=boxes[:, 4], labels=labels))
        return results


def refine_corners(boxes: Tensor, scores: Tensor, offsets: Tensor, stride: int) -> Tensor:
    """Move each corner of boxes [n, 4] in pixels to the best of the four cells around it, plus the offset there.

    The maps, with cells of `stride` pixels, have scores of top-left and bottom-right corners [2, h, w], and the offsets
    (x, y) of both in strides [4, h, w]. They have at least 2x2 cells: pad images to 32 pixels.
    """
    h, w = scores.shape[1:]
    x, y = (boxes.view(-1, 2, 2) / stride).floor().long().unbind(-1)  # [n, 2] each
    ahead = torch.arange(2, device=boxes.device)
    window = (w * ahead[:, None] + ahead).flatten()  # [4]: a cell and its neighbours right, below and both
    cells = (w * y.clamp(0, h - 2) + x.clamp(0, w - 2))[..., None] + window  # [n, 2, 4]
    best = scores.flatten(1).expand(len(boxes), -1, -1).gather(2, cells).argmax(2, keepdim=True)  # [n, 2, 1]
    cell = cells.gather(2, best)  # [n, 2, 1]
    shifts = offsets.view(2, 2, -1).expand(len(boxes), -1, -1, -1)  # [n, 2, 2, h * w]
    shift = shifts.gather(3, cell[:, :, None].expand(-1, -1, 2, -1)).squeeze(3)  # [n, 2, 2]
    return (torch.cat([cell % w, cell // w], 2) + shift).flatten(1) * stride  # [n, 4]


def _clamp(boxes: Tensor, img_shape: tuple[int, int]) -> Tensor:
    h, w = img_shape[:2]
    return torch.stack([boxes[:, i].clamp(0, side) for i, side in enumerate((w, h, w, h))], 1)  # [n, 4]


def _flat(maps: Sequence[Tensor]) -> Tensor:
    """Maps ``[B, C, h, w]`` of all levels as one tensor [B, N, C] in float32."""
    return torch.cat([x.flatten(2) for x in maps], 2).transpose(1, 2).float()


def _boxes(point_maps: Sequence[Tensor], points: Tensor) -> Tensor:
    """Boxes [B, N, 4] in pixels from point sets ``[B, 18, h, w]``, whose first two points (y, x) are the corners."""
    corners = _flat(point_maps)[..., :4].unflatten(-1, (2, 2)).flip(-1)  # [B, N, 2, 2], (x, y)
    return (points[:, None, :2] + corners * points[:, None, 2:]).flatten(2)  # [B, N, 4]


def _at_least_one(positive: Tensor) -> Tensor:
    """Sum over images of the number of positives [B, N, ...], each at least 1: [...]."""
    return positive.sum(1).clamp(min=1).sum(0)
