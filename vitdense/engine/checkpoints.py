"""Checkpoints of mmengine: read without running code from them, written to a temporary file first."""

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from mmengine.fileio import LocalBackend, register_backend
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader, get_torchvision_models

from vitdense.backbones.base import main_process_first
from vitdense.files import atomic_write
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.read import read

# "" is mmengine's loader of local paths, and of all that no other prefix claims.
PREFIXES = ("", "http://", "https://", "timm://", "hf://", "torchvision://")


def _log_statistic(owner: type, name: str) -> Callable:
    """Replaces `getattr` while a checkpoint is read: mmengine's log buffers name their own methods by it."""
    if owner is not HistoryBuffer:
        raise UnpicklingError(f"the checkpoint asks for {name!r} of {owner!r}, which only code would need")
    return getattr(owner, name)


# The log history that mmengine saves in addition to tensors and numbers, and restores when a run is resumed.
RUN_GLOBALS = (HistoryBuffer, (_log_statistic, "builtins.getattr"))


def read_checkpoint(filename: str, map_location: Any = None, allow_pickle: bool = False) -> dict:
    """Read a checkpoint of a run, with its log history.

    Args:
        filename: See `read`. Under ``torchvision://`` mmengine's names keep their meaning, so that configs do not
            change their weights: ``torchvision://resnet50`` is the first version, not torchvision's newest.
        map_location: As for `torch.load`.
        allow_pickle: Run the code that a pickle asks for. Only for files whose author you trust.

    Raises:
        CheckpointNotFoundError: See `read`.
        CheckpointMismatchError: See `read`; where `allow_pickle` would help, the message says where to set it.
    """
    if filename.startswith("torchvision://"):
        filename = get_torchvision_models().get(filename.removeprefix("torchvision://"), filename)
    try:
        with main_process_first(filename):
            return read(filename, allow=RUN_GLOBALS, allow_pickle=allow_pickle, map_location=map_location)
    except CheckpointMismatchError as error:
        if "allow_pickle" not in str(error):
            raise
        raise CheckpointMismatchError(
            f"{error}. For the checkpoint of a run (load_from, resume, test, predict) the config sets it by "
            f"custom_hooks=[dict(type='vitdense.ExactLoadHook', allow_pickle=True)]"
        ) from error


def install_loader(allow_pickle: bool = False) -> None:
    """Make mmengine load checkpoints (`load_from`, resume, test) by `read_checkpoint`, for every model of the process.

    mmengine's own loader runs the code of a pickle that asks for more than data, with a warning.

    Args:
        allow_pickle: See `read_checkpoint`.
    """

    def load_from_vitdense(filename: str, map_location: Any = None) -> dict:  # mmengine logs the name
        return read_checkpoint(filename, map_location, allow_pickle)

    CheckpointLoader.register_scheme(PREFIXES, load_from_vitdense, force=True)


class AtomicLocalBackend(LocalBackend):
    """mmengine's local files, but a file appears under its name only when it is complete.

    ``CheckpointHook(backend_args=dict(backend='vitdense.atomic'))`` then survives a kill in the middle of a save.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        with atomic_write(filepath) as scratch:
            scratch.write_bytes(obj)


register_backend("vitdense.atomic", AtomicLocalBackend)
