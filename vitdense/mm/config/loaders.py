"""Data loaders with and without worker processes."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from vitdense.mm.config.base import Asked
from vitdense.mm.config.query import SPLITS

# Of a data loader, what only worker processes need; torch refuses most of it without any.
OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")


def drop_worker_keys(cfg: Config, asked: Asked) -> None:
    """Without workers, what needs them goes."""
    for split in SPLITS:
        loader = cfg.get(f"{split}_dataloader")
        if loader and not loader.get("num_workers"):
            for key in OF_WORKERS:
                if loader.get(key):
                    del loader[key]


def in_process(loader: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a data loader that loads in this process: without workers, and what needs them."""
    return {**{key: value for key, value in loader.items() if key not in OF_WORKERS}, "num_workers": 0}
