"""Detectors on large images: in tiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmdet.models.utils.misc import samplelist_boxtype2tensor
from mmdet.structures import SampleList
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseTTAModel
from mmengine.structures import InstanceData
from torch import nn

from vitdense.errors import OptionError
from vitdense.mm.data.images import run_steps
from vitdense.mm.heads.rle_masks import Codes
from vitdense.mm.registry import MODELS
from vitdense.results.tiles import Found, cut, merge, place

BATCH = 4  # tiles


@MODELS.register_module()
class TiledDetector(BaseTTAModel):
    """A detector that predicts in tiles of an image, and merges what they have; see `vitdense.results.tiles`.

    Args:
        module: The detector or its config.
        side: Of a tile, in pixels of the image.
        overlap: Of neighbours, as a share of `side`.
        pipeline: Steps that every tile goes through, as an image of its own; see `split_pipeline`.

    Raises:
        OptionError: See `vitdense.results.tiles.cut`; or the model is panoptic.
    """

    def __init__(self, module: dict | nn.Module, side: int, overlap: float, pipeline: Sequence[dict]) -> None:
        super().__init__(module)
        cut((1, 1), side, overlap)  # raises before the first image
        fusion = getattr(self.module, "panoptic_fusion_head", None)
        if fusion is not None and fusion.test_cfg.get("panoptic_on", True):
            raise OptionError(
                "tiles: got a panoptic model, expected a detector: test_cfg.panoptic_on=False makes it one"
            )
        self.side, self.overlap = side, overlap
        self.pipeline = Compose(pipeline)

    @torch.no_grad()
    def test_step(self, data: dict) -> SampleList:
        """Detections of a batch, in the size of the file; masks as `Codes`.

        Args:
            data: ``inputs``, images ``[3, H, W]`` as they were loaded, and their ``data_samples``.
        """
        for pixels, sample in zip(data["inputs"], data["data_samples"]):
            sample.pred_instances = self._detect(pixels.permute(1, 2, 0).contiguous().numpy())
        samplelist_boxtype2tensor(data["data_samples"])  # as mmdet's preprocessor, for what draws the annotations
        return data["data_samples"]

    def _detect(self, image: np.ndarray) -> InstanceData:
        """Detections of an image [H, W, 3]."""
        tiles = cut(image.shape[:2], self.side, self.overlap)
        samples: SampleList = []
        for start in range(0, len(tiles), BATCH):
            batch = [self._prepare(image[y1:y2, x1:x2]) for x1, y1, x2, y2 in tiles[start : start + BATCH]]
            samples += self.module.test_step(pseudo_collate(batch))
        return self.merge_preds(samples, tiles, image.shape[:2])

    def _prepare(self, pixels: np.ndarray) -> dict[str, Any]:
        return run_steps(self.pipeline, pixels)

    def merge_preds(self, data_samples_list: SampleList, tiles: np.ndarray, size: Sequence[int]) -> InstanceData:
        """Make one list of the detections of all tiles. Those whose score is too low for a mask are in it as they are.

        Args:
            data_samples_list: Of each tile.
            tiles: See `cut`.
            size: Of the image, height and width in pixels.
        """
        parts = [_placed(sample.pred_instances, tile, size) for sample, tile in zip(data_samples_list, tiles)]
        tile_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        found = InstanceData.cat(parts)
        masks = found.get("masks")
        counts = np.array([masks is None or masks[i] is not None for i in range(len(found))], bool)
        chosen, rest = found[counts], found[~counts]
        arrays = [chosen[key].numpy() for key in ("bboxes", "scores", "labels")]
        merged = merge(Found(*arrays, chosen.get("masks")), tile_of[counts], tiles, size)
        result = InstanceData(
            bboxes=torch.from_numpy(merged.boxes),
            scores=torch.from_numpy(merged.scores),
            labels=torch.from_numpy(merged.labels),
        )
        if masks is not None:
            result.masks = merged.rle
        result = InstanceData.cat([result, rest])
        if masks is not None:
            result.masks = Codes(result.masks, size)
        return result


def _placed(found: InstanceData, tile: Sequence[int], size: Sequence[int]) -> InstanceData:
    """Detections of a tile as those of the image, on the CPU."""
    from pycocotools import mask as rle

    found = found.cpu()
    found.bboxes += found.bboxes.new_tensor(tile[:2]).repeat(2)
    if "masks" in found:
        masks = [rle.decode(mask) if isinstance(mask, dict) else mask for mask in found.masks]
        found.masks = [None if mask is None else place(np.asarray(mask, bool), tile[:2], size) for mask in masks]
    return found
