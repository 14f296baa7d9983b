"""Data loaders with and without worker processes."""

from collections.abc import Mapping
from typing import Any

# Of a data loader, what only worker processes need; torch refuses most of it without any.
OF_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")


def in_process(loader: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a data loader that loads in this process: without workers, and without what needs them."""
    return {**{key: value for key, value in loader.items() if key not in OF_WORKERS}, "num_workers": 0}
