"""The embedded data set for mmseg."""

from functools import partial

from mmengine.logging import print_log
from mmseg.datasets import BaseSegDataset

from vitdense.datasets.shapes import CLASSES, PALETTE, check_draw, draw_dataset
from vitdense.registry import DATASETS

__all__ = ["ShapesSegDataset"]


@DATASETS.register_module()
class ShapesSegDataset(BaseSegDataset):
    """Label maps of the embedded data set, which is drawn when it is first loaded.

    Class 0 is the background, 255 (pixels of a crowd) is ignored. Usual paths under ``data_root``:
    ``data_prefix=dict(img_path='train', seg_map_path='semantic/train')``, and the same with ``val``.

    Args:
        draw: Arguments of :func:`vitdense.datasets.shapes.draw_dataset`: ``num_train``, ``num_val``, ``image_size``,
            ``seed``. Data sets that share a ``data_root`` must agree in them.
        *args, **kwargs: Of mmseg's ``BaseSegDataset``; ``data_root`` is required.

    Raises:
        ValueError: ``data_root`` is missing or holds something else, or ``draw`` has an unknown key.
    """

    drawn_on_demand = True  # its files need not be there before it is built
    METAINFO = {"classes": ("background", *CLASSES), "palette": [(0, 0, 0), *PALETTE]}  # noqa: RUF012

    def __init__(self, *args, draw: dict | None = None, **kwargs) -> None:
        self.draw = check_draw(draw)
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Draw the data set unless it is there, then list the images."""
        draw_dataset(self.data_root, log=partial(print_log, logger="current"), **self.draw)
        return super().load_data_list()
