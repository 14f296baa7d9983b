"""The data preprocessor of mmseg for any number of bands."""

from mmseg.models.data_preprocessor import SegDataPreProcessor

from vitdense.extensions.bands.step import ByBands
from vitdense.mm.registry import MODELS


@MODELS.register_module()
class SegBandsPreprocessor(ByBands, SegDataPreProcessor):
    """mmseg's `SegDataPreProcessor`, with one value of `mean` and `std` for each band."""
