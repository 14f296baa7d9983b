"""An exported file in place of a config's model, to evaluate what a runtime computes."""

from pathlib import Path

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData

from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import MODELS
from vitdense.runtime import Program


def open_program(path: str | Path) -> Program:
    """Open an exported file; raises a ConfigError where `Program` raises a ValueError."""
    try:
        return Program(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@MODELS.register_module()
class ExportedModel(BaseModel):
    """A file of ``vitdense export --to onnx``, run by `vitdense.runtime.Program`; panoptic models are refused.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.program = open_program(path)
        if self.program.is_panoptic:
            raise ConfigError(f"{path}: got a panoptic model, expected a detector or a segmentor")

    def forward(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError  # only `test_step` is used

    def test_step(self, data: dict) -> list[BaseDataElement]:
        """Predict on a batch: ``inputs``, loaded images ``[C, H, W]``, colours BGR, and their ``data_samples``.

        Predictions are in pixels of the image file; masks are `Codes`.
        """
        for pixels, sample in zip(data["inputs"], data["data_samples"]):
            image = pixels.permute(1, 2, 0)  # [H, W, C]
            image = image.flip(2) if self.program.about["channels"] in ("RGB", "BGR") else image
            found = self.program(image.contiguous().numpy(), score_thr=0.0)
            if found.semantic is not None:
                sample.pred_sem_seg = PixelData(data=torch.from_numpy(found.semantic)[None])  # [1, H, W]
                continue
            from mmdet.models.utils.misc import samplelist_boxtype2tensor  # imported here: segmentors do without mmdet

            from vitdense.mm.heads.rle_masks import instances_of

            sample.pred_instances = instances_of(found, pixels.shape[1:])
            samplelist_boxtype2tensor([sample])  # annotations as from mmdet's preprocessor, to draw them
        return data["data_samples"]
