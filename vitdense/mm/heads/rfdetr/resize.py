"""Training at several sizes: a whole batch is resized, so that its images stay of one size."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitdense.mm.registry import MODELS


@MODELS.register_module()
class BatchResize(nn.Module):
    """For `batch_augments` of a data preprocessor: images, boxes and masks at a size that is drawn for every batch.

    Args:
        step: Patch size times windows, in pixels: all sizes are multiples, so that windows are whole.
        most: Steps by which the shorter side grows or shrinks at most.
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
            truth.bboxes = truth.bboxes * truth.bboxes.new_tensor(ratios[::-1]).repeat(2)
            if "masks" in truth:
                truth.masks = truth.masks.resize(size)
        return inputs, data_samples
