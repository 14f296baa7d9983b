"""The data preprocessor of mmdet for any number of bands."""

from mmdet.models.data_preprocessors import DetDataPreprocessor

from vitdense.extensions.bands.step import ByBands
from vitdense.mm.registry import MODELS


@MODELS.register_module()
class DetBandsPreprocessor(ByBands, DetDataPreprocessor):
    """mmdet's `DetDataPreprocessor`, with one value of `mean` and `std` for each band."""
