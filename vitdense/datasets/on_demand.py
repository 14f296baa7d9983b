"""What the data set classes for mmdet and mmseg share."""

from functools import partial

from mmengine.logging import print_log

from vitdense.datasets.shapes import check_draw, draw_dataset


class DrawnOnDemand:
    """Mixin for a data set class of mm (first base class): draws the embedded data set when it is first loaded.

    Args:
        draw: Arguments of :func:`vitdense.datasets.shapes.draw_dataset`: ``num_train``, ``num_val``, ``image_size``,
            ``seed``. Data sets that share a ``data_root`` must agree in them.
        *args, **kwargs: Of the data set class; ``data_root`` is required.

    Raises:
        ShapesError: ``data_root`` is missing or holds something else, or ``draw`` has an unknown key.
    """

    drawn_on_demand = True  # its files need not be there before it is built

    def __init__(self, *args, draw: dict | None = None, **kwargs) -> None:
        self.draw = check_draw(draw)
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Draw the data set unless it is there, then load it."""
        draw_dataset(self.data_root, log=partial(print_log, logger="current"), **self.draw)
        return super().load_data_list()
