"""All heads for mmdet: importing this module registers them."""

from typing import Any

import torch
from mmdet.models.losses import FocalLoss
from torch import Tensor

from vitdense.mm.heads import cascade, rle_masks, tiled  # noqa: F401
from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead  # noqa: F401
from vitdense.mm.heads.rfdetr import head, projector  # noqa: F401
from vitdense.mm.registry import MODELS


@MODELS.register_module()
class ClampedFocalLoss(FocalLoss):
    """mmdet's focal loss, for heads that divide it by the number of positives: by 1 at least.

    mmdet's Sparse R-CNN divides by 1e-7 where no image of the batch has an object, as after some crops. One such step
    destroys the model. The authors' code divides by 1.
    """

    def forward(self, pred: Tensor, *args: Any, avg_factor: Tensor | float | None = None, **kwargs: Any) -> Tensor:
        """Logits ``[N, classes]``, labels and weights ``[N]``; `avg_factor` is the number of positives."""
        if avg_factor is not None:
            avg_factor = torch.as_tensor(avg_factor, device=pred.device).clamp(min=1)
        return super().forward(pred, *args, avg_factor=avg_factor, **kwargs)
