"""Detectors on large images, in tiles."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from mmdet.models.utils.misc import samplelist_boxtype2tensor
from mmdet.structures import SampleList
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseTTAModel
from torch import nn

from vitdense.errors import OptionError
from vitdense.mm.data.images import run_steps
from vitdense.mm.heads.rle_masks import fields_of, instances_of
from vitdense.mm.registry import MODELS
from vitdense.results.result import Result
from vitdense.results.tiles import cut, detect


@MODELS.register_module()
class TiledDetector(BaseTTAModel):
    """A detector that predicts in tiles of an image and merges the results; see `vitdense.results.tiles`.

    Args:
        module: The detector, not panoptic, or its config.
        side: Side of a tile, in pixels of the image; the longer one, where the pipeline makes all images a rectangle.
        overlap: Overlap of neighbouring tiles, as a share of `side`.
        pipeline: Steps for every tile; see `split_pipeline`.
    """

    def __init__(self, module: dict | nn.Module, side: int, overlap: float, pipeline: Sequence[dict]) -> None:
        super().__init__(module)
        cut((1, 1), side, overlap)  # raises if an argument is out of range
        fusion = getattr(self.module, "panoptic_fusion_head", None)
        if fusion is not None and fusion.test_cfg.get("panoptic_on", True):
            raise OptionError(
                "tiles: got a panoptic model, expected a detector: test_cfg.panoptic_on=False makes it one"
            )
        if refused := getattr(getattr(self.module, "bbox_head", None), "not_in_tiles", None):
            raise OptionError(f"tiles: got {refused}")
        self.side, self.overlap = _tile(side, pipeline), overlap
        self.pipeline = Compose(pipeline)

    @torch.no_grad()
    def test_step(self, data: dict) -> SampleList:
        """Detect in a batch: ``inputs``, images ``[C, H, W]`` or arrays ``[H, W, C]``; and their ``data_samples``.

        Detections are in pixels of the image file; masks are `Codes`.
        """
        for pixels, sample in zip(data["inputs"], data["data_samples"]):
            image = pixels.permute(1, 2, 0).contiguous().numpy() if torch.is_tensor(pixels) else pixels  # [H, W, C]
            find = partial(self._find, sample.get("mask_score_thr", 0.0))
            found = detect(image, find, self.side, self.overlap)
            sample.pred_instances = instances_of(found, image.shape[:2])
        samplelist_boxtype2tensor(data["data_samples"])  # as in mmdet's preprocessor, to draw annotations
        return data["data_samples"]

    val_step = test_step

    def _find(self, mask_score_thr: float, tiles: Sequence[np.ndarray]) -> list[Result]:
        data = [run_steps(self.pipeline, tile) for tile in tiles]
        for one in data:
            one["data_samples"].set_metainfo({"mask_score_thr": mask_score_thr})
        samples = self.module.test_step(pseudo_collate(data))
        return [Result(**fields_of(sample.pred_instances)) for sample in samples]

    def merge_preds(self, data_samples_list: SampleList) -> SampleList:
        raise NotImplementedError  # `vitdense.results.tiles.detect` merges


def _tile(side: int, pipeline: Sequence[dict]) -> tuple[int, int]:
    """Height and width of a tile, in the ratio to which the pipeline resizes all images, if it does."""
    scales = [step["scale"] for step in pipeline if np.ndim(step.get("scale")) == 1 and not step.get("keep_ratio")]
    width, height = scales[0] if scales else (1, 1)
    return round(side * height / max(width, height)), round(side * width / max(width, height))
