"""Exported models in the place of the model of a config: evaluated as what they are, files that a runtime runs."""

from pathlib import Path

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData

from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import MODELS
from vitdense.runtime import Program


def open_program(path: str | Path) -> Program:
    """An exported file; a ConfigError where `Program` has a ValueError."""
    try:
        return Program(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@MODELS.register_module()
class ExportedModel(BaseModel):
    """A file of ``vitdense export --to onnx``, run by `vitdense.runtime.Program`; not of a panoptic model.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.program = open_program(path)
        if self.program.is_panoptic:
            raise ConfigError(f"{path}: got a panoptic model, expected a detector or a segmentor")

    def forward(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError  # `test_step` is all that a file has

    def test_step(self, data: dict) -> list[BaseDataElement]:
        """Predictions of a batch: ``inputs``, images ``[3, H, W]`` BGR as they were loaded, and their ``data_samples``.
        They are in the size of the file; masks as `Codes`."""
        for pixels, sample in zip(data["inputs"], data["data_samples"]):
            found = self.program(pixels.permute(1, 2, 0).flip(2).contiguous().numpy(), score_thr=0.0)
            if found.semantic is not None:
                sample.pred_sem_seg = PixelData(data=torch.from_numpy(found.semantic)[None])  # [1, H, W]
                continue
            from mmdet.models.utils.misc import samplelist_boxtype2tensor  # here, for segmentors do without mmdet

            from vitdense.mm.heads.rle_masks import instances_of

            sample.pred_instances = instances_of(found, pixels.shape[1:])
            samplelist_boxtype2tensor([sample])  # annotations, as mmdet's preprocessor makes them, for what draws them
        return data["data_samples"]
