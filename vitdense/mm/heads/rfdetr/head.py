"""RF-DETR (arXiv 2511.09554) as a head of mmdet's single-stage detectors, and the sizes of its batches."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmdet.models.layers.transformer import MLP
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_xyxy_to_cxcywh
from mmengine.model import BaseModule
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.layers.layout import without_autocast
from vitdense.layers.mask_branch import MaskBranch
from vitdense.mm.heads.rfdetr.decoder import Boxes, Decoder, Selection, moved, proposals
from vitdense.mm.heads.rfdetr.losses import WEIGHTS, Layer, Truth, losses
from vitdense.mm.registry import MODELS

AT_ONCE = 32  # masks that are resized to the image together


class Start(NamedTuple):
    """Inputs of the decoder."""

    memory: Tensor  # positions of the map, [B, N, C]
    size: tuple[int, int]  # height and width of the map
    rows: Tensor  # selected positions, [B, G*Q, C]
    first: Boxes  # their predictions
    queries: Tensor  # [B, G*Q, C]
    boxes: Tensor  # of the queries, [B, G*Q, 4]
    groups: int  # G in training, else 1


@MODELS.register_module()
class RFDETRHead(BaseModule):
    """Queries with boxes selected from one map, in groups during training, without NMS.

    For mmdet's `SingleStageDetector` with a `C2fProjector` as neck. Coordinates are relative to the map, that is the
    padded image. The published models were trained on images stretched to squares; others see rectangles.

    Args:
        num_classes: C.
        in_channels: Channels of the map and the queries.
        stride: Stride of the map in pixels.
        num_queries: Q, queries of a group and most objects of an image in training.
        num_groups: G, groups that are matched separately in training (Group DETR, ICCV 2023); the first one predicts.
        num_layers: Layers of the decoder.
        num_heads: Heads of self-attention and of deformable attention.
        num_points: Points that a head of deformable attention reads.
        ffn_dims: Hidden channels of the decoder's MLPs.
        with_masks: Whether there is a mask branch.
        train_cfg, init_cfg: Passed by mmdet; not used.
        test_cfg: ``max_per_img``, pairs of a query and a class that are kept; Q by default.
    """

    family = "rfdetr"
    Decoder, weights = Decoder, WEIGHTS
    # For a subclass that predicts more per object: its name in results, its losses, how well it fits its object, and
    # why tiles are refused.
    more: str | None = None
    terms: Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]] | None = None
    quality: Callable[[Tensor, Tensor], Tensor] | None = None
    not_in_tiles: str | None = None

    def __init__(
        self,
        num_classes: int = 80,
        in_channels: int = 256,
        stride: int = 16,
        num_queries: int = 300,
        num_groups: int = 13,
        num_layers: int = 3,
        num_heads: Sequence[int] = (8, 16),
        num_points: int = 2,
        ffn_dims: int = 2048,
        with_masks: bool = False,
        train_cfg: Mapping | None = None,
        test_cfg: Mapping | None = None,
        init_cfg: Mapping | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.num_classes, self.num_queries, self.num_groups, self.stride = num_classes, num_queries, num_groups, stride
        self.max_per_img = min((test_cfg or {}).get("max_per_img", num_queries), num_queries * num_classes)
        self.decoder = self.Decoder(in_channels, num_layers, tuple(num_heads), num_points, ffn_dims)
        self.selections = nn.ModuleList(Selection(in_channels, num_classes) for _ in range(num_groups))
        self.queries = nn.Embedding(num_groups * num_queries, in_channels)
        self.references = nn.Embedding(num_groups * num_queries, 4)
        self.classes, self.box = nn.Linear(in_channels, num_classes), MLP(in_channels, in_channels, 4, 3)
        self.masks = MaskBranch(in_channels, num_layers) if with_masks else None
        nn.init.zeros_(self.references.weight)
        for part in (self, *self.selections):
            nn.init.constant_(part.classes.bias, -math.log(99))  # initial probability 0.01
            nn.init.zeros_(part.box.layers[-1].weight)
            nn.init.zeros_(part.box.layers[-1].bias)

    def start(self, x: Tensor) -> Start:
        """Run the first stage on a map ``[B, C, h, w]``."""
        groups = self.num_groups if self.training else 1
        size, memory = (x.shape[2], x.shape[3]), x.flatten(2).mT  # [B, N, C]
        places, proposed = proposals(x)
        seen = memory * proposed.to(memory.dtype)  # [B, N, C]
        rows, first = zip(*(one(seen, places, self.num_queries) for one in self.selections[:groups]))
        rows = torch.cat(rows, dim=1)  # [B, G*Q, C]
        first = Boxes(*(torch.cat(part, dim=1) for part in zip(*first)))
        number = groups * self.num_queries
        boxes = moved(first.boxes.detach(), self.references.weight[:number])  # [B, G*Q, 4]
        queries = self.queries.weight[:number].repeat(x.shape[0], 1, 1)  # [B, G*Q, C]
        return Start(memory, size, rows, first, queries, boxes, groups)

    def forward(self, maps: Sequence[Tensor]) -> list[Layer]:
        """A map ``[B, C, h, w]`` to predictions of the last layer; in training of all layers, then the first stage."""
        (x,) = maps
        start = self.start(x)
        outs = self.decoder(start.queries, start.memory, start.size, start.boxes, start.groups)
        shown = outs if self.training else outs[-1:]
        layers = [(self.classes(out), moved(start.boxes, self.box(out))) for out in shown]
        layers += [start.first] if self.training else []
        masks = [None] * len(layers)
        if self.masks is not None:
            masks = self.masks(x, self.stride, start.rows if self.training else None, outs)
        return [Layer(*layer, mask) for layer, mask in zip(layers, masks)]

    def extent(self, maps: Sequence[Tensor]) -> tuple[int, int]:
        return maps[0].shape[2] * self.stride, maps[0].shape[3] * self.stride

    def loss(self, x: Sequence[Tensor], batch_data_samples: Sequence) -> dict[str, Tensor]:
        """Maps and mmdet's data samples to losses; see `losses`."""
        layers, (h, w) = self(x), self.extent(x)
        truths = [self.truth(sample.gt_instances, h, w) for sample in batch_data_samples]
        with without_autocast(x[0]):
            of_more = self.weights, self.terms, self.quality
            return losses([_float(layer) for layer in layers], truths, self.num_groups, *of_more)

    def truth(self, instances: InstanceData, h: int, w: int) -> Truth:
        """Objects of an image, relative to a map that covers h x w pixels."""
        boxes = bbox_xyxy_to_cxcywh(instances.bboxes.float()) / instances.bboxes.new_tensor([w, h, w, h])  # [T, 4]
        masks = None
        if self.masks is not None:
            masks = instances.masks.to_tensor(torch.bool, boxes.device)  # [T, height, width]
            masks = F.pad(masks, (0, w - masks.shape[2], 0, h - masks.shape[1]))  # [T, h, w]
        return Truth(instances.labels, boxes, masks)

    def predict(self, x: Sequence[Tensor], batch_data_samples: Sequence, rescale: bool = False) -> list[InstanceData]:
        """Maps to the best pairs of a query and a class of every image, with masks if there is a branch.

        `rescale`: in pixels of the original image.
        """
        (layer,), (h, w) = self(x), self.extent(x)
        scores, labels, queries = self.best(layer)
        boxes = bbox_cxcywh_to_xyxy(layer.boxes) * layer.boxes.new_tensor([w, h, w, h])  # [B, Q, 4]
        found = []
        for i, sample in enumerate(batch_data_samples):
            height, width = sample.metainfo["img_shape"][:2]
            own = boxes[i, queries[i]]  # [n, 4]
            own = torch.minimum(own.clamp(min=0), own.new_tensor([width, height, width, height]))
            scale = (1.0, 1.0)
            if rescale:
                scale = sample.metainfo["scale_factor"]
                own = own / own.new_tensor(scale).repeat(2)
            results = InstanceData(bboxes=own, scores=scores[i], labels=labels[i])
            if layer.masks is not None:
                # The image is the upper left part of the whole map.
                whole = round(h / scale[1]), round(w / scale[0])
                size = sample.metainfo["ori_shape"][:2] if rescale else (height, width)
                logits = layer.masks.logits_of(i, queries[i])[:, None].float()  # [n, 1, H, W]
                results.masks = torch.cat(
                    [
                        (F.interpolate(part, whole, mode="bilinear")[:, 0, : size[0], : size[1]] > 0).cpu()
                        for part in logits.split(AT_ONCE)
                    ]
                )  # [n, height, width]
            if layer.more is not None:
                size = layer.more.new_tensor([w / scale[0], h / scale[1]])
                setattr(results, self.more, self.shown(layer.more[i, queries[i]], size))
            found.append(results)
        return found

    def shown(self, more: Tensor, size: Tensor) -> Tensor:
        """A subclass's further predictions as results for an image of width and height `size`, ``[2]``."""
        raise NotImplementedError

    def scores(self, layer: Layer) -> Tensor:
        """Scores of queries and classes, ``[B, Q, C]``."""
        return layer.logits.float().sigmoid()

    def best(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, labels and queries of the best pairs, ``[B, max_per_img]`` each."""
        scores, pairs = self.scores(layer).flatten(1).topk(self.max_per_img)
        return scores, pairs % self.num_classes, pairs // self.num_classes


def _float(layer: Layer) -> Layer:
    masks = layer.masks and type(layer.masks)(*(x.float() for x in layer.masks))
    more = None if layer.more is None else layer.more.float()
    return Layer(layer.logits.float(), layer.boxes.float(), masks, more)


@MODELS.register_module()
class BatchResize(nn.Module):
    """Resize images, boxes and masks to a random size per batch; for `batch_augments` of a data preprocessor.

    Args:
        step: Patch size times windows, in pixels; all sizes are multiples, so that windows are whole.
        most: Most steps by which the shorter side grows or shrinks.
    """

    def __init__(self, step: int, most: int = 5) -> None:
        super().__init__()
        self.step, self.most = step, most

    def forward(self, inputs: Tensor, data_samples: Sequence) -> tuple[Tensor, Sequence]:
        """Images ``[B, 3, H, W]`` and mmdet's data samples, which are changed."""
        old = inputs.shape[2:]
        ratio = 1 + int(torch.randint(-self.most, self.most + 1, ())) * self.step / min(old)
        size = tuple(max(round(side * ratio / self.step), 2) * self.step for side in old)
        inputs = F.interpolate(inputs, size, mode="bilinear")  # [B, 3, *size]
        ratios = [new / side for new, side in zip(size, old)]
        for sample in data_samples:
            shape = tuple(round(side * by) for side, by in zip(sample.img_shape[:2], ratios))
            sample.set_metainfo({"img_shape": shape, "batch_input_shape": size, "pad_shape": size})
            truth = sample.gt_instances
            places = truth.bboxes.unflatten(-1, (-1, 2))  # corners, [T, 2 or 4, 2]
            truth.bboxes = (places * places.new_tensor(ratios[::-1])).flatten(1)
            if "masks" in truth:
                truth.masks = truth.masks.resize(size)
        return inputs, data_samples
