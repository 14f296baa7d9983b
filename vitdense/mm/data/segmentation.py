"""Data sets for mmseg, with labels by name, and the step that loads label maps."""

from collections.abc import Sequence
from typing import Any

from mmseg.datasets import BaseSegDataset, transforms

from vitdense.errors import OptionError
from vitdense.mm.data.classes import label_map
from vitdense.mm.data.shapes import CLASSES, PALETTE, DrawnOnDemand
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import DATASETS, TRANSFORMS


@TRANSFORMS.register_module()
class LoadAnnotations(transforms.LoadAnnotations):
    """mmseg's `LoadAnnotations`, whose errors name the file."""

    def transform(self, results: dict) -> dict:
        try:
            return super().transform(results)
        except OptionError:
            raise
        except Exception as error:  # decoders have no error in common
            reason = f"{type(error).__name__}: {str(error).strip()}"
            raise ConfigError(f"label map {results.get('seg_map_path')} cannot be read ({reason})") from error


@DATASETS.register_module()
class SegDataset(BaseSegDataset):
    """mmseg's `BaseSegDataset` for label maps whose values have other names, or another order, than `metainfo.classes`.

    Args:
        values: Names of the values 0, 1, ...; with `reduce_zero_label` of 1, 2, ...
        *args, **kwargs: Arguments of `BaseSegDataset`.
    """

    def __init__(self, *args: Any, values: Sequence[str], **kwargs: Any) -> None:
        self.values = tuple(values)
        super().__init__(*args, **kwargs)

    def get_label_map(self, new_classes: Sequence[str]) -> dict[int, int]:
        return label_map(self.values, new_classes, self.ignore_index)


@DATASETS.register_module()
class ShapesSegDataset(DrawnOnDemand, BaseSegDataset):
    """Label maps of the embedded data set: class 0 is the background, 255 (pixels of a crowd) is ignored.

    Usual paths under ``data_root``: ``data_prefix=dict(img_path='train', seg_map_path='semantic/train')``, and the same
    with ``val``.
    """

    METAINFO = {"classes": ("background", *CLASSES), "palette": [(0, 0, 0), *PALETTE]}  # noqa: RUF012
