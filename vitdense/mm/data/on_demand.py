"""Base of the data set classes for mmdet and mmseg."""

from pathlib import Path

from mmengine.logging import print_log

from vitdense.mm.data.shapes import draw_dataset


class DrawnOnDemand:
    """Mixin for a data set class of mm (first base class): draws the embedded data set before it is loaded.

    Args:
        draw: Arguments of :func:`vitdense.mm.data.shapes.draw_dataset` other than ``root``. Data sets that share a
            ``data_root`` must have the same.
        *args, **kwargs: Of the data set class; ``data_root`` is required.
    """

    drawn_on_demand = True  # read by the checks before training: files may be missing
    draw_files = staticmethod(draw_dataset)

    def __init__(self, *args, draw: dict | None = None, **kwargs) -> None:
        self.draw = draw or {}
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Draw the data set unless it exists, then load it."""
        if not Path(self.data_root).exists():
            print_log(f"drawing the data set into {self.data_root}, once, in about a minute", logger="current")
        self.draw_files(self.data_root, **self.draw)
        return super().load_data_list()
