"""Loops that validate and test a detector in tiles, so that metrics are of whole images."""

import copy
from typing import Any

from mmengine.model import BaseTTAModel
from mmengine.runner import Runner, TestLoop, ValLoop

from vitdense.mm.config.query import leaf_datasets, tiled_pipeline
from vitdense.mm.heads.tiled import TiledDetector
from vitdense.mm.registry import LOOPS


class _InTiles:
    def __init__(self, runner: Runner, dataloader: dict, *args: Any, side: int, overlap: float, **options: Any) -> None:
        self.model, dataloader = runner.model, copy.deepcopy(dataloader)
        if not isinstance(self.model, BaseTTAModel):  # by --tiles or --tta of a test
            for dataset in leaf_datasets(dataloader["dataset"]):
                dataset["pipeline"], steps = tiled_pipeline(dataset["pipeline"])
            self.model = TiledDetector(self.model, side, overlap, steps)
        super().__init__(runner, dataloader, *args, **options)

    def run_iter(self, idx: int, data_batch: Any) -> None:
        trained, self.runner.model = self.runner.model, self.model
        try:
            super().run_iter(idx, data_batch)
        finally:
            self.runner.model = trained


@LOOPS.register_module()
class TiledValLoop(_InTiles, ValLoop):
    """mmengine's `ValLoop` in tiles of `side` and `overlap`, see `vitdense.results.tiles`."""


@LOOPS.register_module()
class TiledTestLoop(_InTiles, TestLoop):
    """mmengine's `TestLoop`, as `TiledValLoop`; options ``--tiles`` and ``--tta`` replace the tiles."""
