"""Weights & Biases as a backend of mmengine's visualizer."""

import numpy as np
from mmengine import visualization
from mmengine.config import Config
from mmengine.visualization.vis_backend import force_init_env

from vitdense.mm.registry import VISBACKENDS


@VISBACKENDS.register_module()
class WandbVisBackend(visualization.WandbVisBackend):
    """mmengine's backend, with its arguments. All charts are over iterations, and no source code is uploaded.

    mmengine lets W&B count its own calls as steps, and uploads every Python file below the current folder, with those
    of a virtual environment.
    """

    def _init_env(self) -> None:
        super()._init_env()
        self._wandb.define_metric("*", step_metric="iter")

    @force_init_env
    def add_config(self, config: Config, **kwargs: object) -> None:
        """Record the config."""
        self._wandb.config.update(config.to_dict(), allow_val_change=True)

    @force_init_env
    def add_scalars(self, scalar_dict: dict, step: int = 0, file_path: str | None = None, **kwargs: object) -> None:
        """Record scalars of an iteration; `file_path` is for other backends."""
        self._wandb.log({"iter": step, **scalar_dict}, commit=self._commit)

    @force_init_env
    def add_image(self, name: str, image: np.ndarray, step: int = 0, **kwargs: object) -> None:
        """Record an image [H, W, 3] uint8 RGB of an iteration."""
        self._wandb.log({"iter": step, name: self._wandb.Image(image)}, commit=self._commit)
