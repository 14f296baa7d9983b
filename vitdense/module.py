"""The base of trunks and necks: a torch module that mmengine can initialise, without needing mmengine."""

import copy
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import nn

from vitdense.errors import OptionError


class Module(nn.Module):
    """A plain module with mmengine's interface: `init_cfg`, `init_weights()` and `is_init`.

    `init_cfg` is an initialiser of mmengine, such as ``dict(type='Xavier', layer='Linear')``, or a list of them. None
    keeps the weights that the constructor made.
    """

    # mmengine's `initialize(module, init_cfg)`; set by `vitdense.registry`, which is imported with mmengine.
    initialize: ClassVar[Callable[[nn.Module, dict | list], None] | None] = None

    def __init__(self, init_cfg: dict | Sequence[dict] | None = None) -> None:
        super().__init__()
        self.init_cfg = copy.deepcopy(init_cfg)
        self.is_init = False

    def init_weights(self) -> None:
        """Apply `init_cfg`. mmengine calls this on every module of a model before training."""
        if self.init_cfg:
            if Module.initialize is None:
                raise OptionError(
                    f"init_cfg: got {self.init_cfg}, which is for mmengine's initialisers; run "
                    f"`import vitdense.registry` first (it needs mmengine), or leave init_cfg None"
                )
            Module.initialize(self, self.init_cfg)
        self.is_init = True
