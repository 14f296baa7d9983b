"""Checkpoints of mmengine: loaded without running code in them, and written atomically."""

from pathlib import Path
from typing import Any

import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader, get_torchvision_models
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_with_path

from vitdense.checkpoint.errors import CheckpointMismatchError, naming_option
from vitdense.checkpoint.read import read, run_globals
from vitdense.files import atomic_write, sha256_of

REST = "rest.pth"  # in the folder of a checkpoint in parts: everything else, and the digests of the parts
SCRATCH = ".parts"  # folder of an incomplete checkpoint
# "" is mmengine's loader of local paths and of every prefix without a loader of its own.
PREFIXES = ("", "http://", "https://", "timm://", "hf://", "torchvision://")
RUN_GLOBALS = run_globals(HistoryBuffer)  # with the log history, which mmengine saves and restores on resume


def read_checkpoint(filename: str, map_location: Any = None, allow_pickle: bool = False) -> dict:
    """Read the checkpoint of a run, including its log history.

    Args:
        filename, map_location, allow_pickle: See `read`; or a folder of `save_parts`. ``torchvision://resnet50`` is the
            first version of the weights, as in mmengine.
    """
    if filename.startswith("torchvision://"):
        filename = get_torchvision_models().get(filename.removeprefix("torchvision://"), filename)
    if (rest := Path(filename, REST)).is_file():
        return read_parts(Path(filename), read_checkpoint(str(rest), map_location, allow_pickle))
    try:
        with naming_option("load_from of the config, CHECKPOINT of a tool, checkpoint of vitdense.load"):
            return read(filename, allow=RUN_GLOBALS, allow_pickle=allow_pickle, map_location=map_location)
    except CheckpointMismatchError as error:
        if "allow_pickle" not in str(error):
            raise
        raise CheckpointMismatchError(
            f"{error}. For the checkpoint of a run (load_from, resume, test, predict) the config sets it by "
            f"default_hooks=dict(exact_load=dict(type='vitdense.ExactLoadHook', allow_pickle=True))"
        ) from error


def read_parts(folder: Path, rest: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint in parts, in whole tensors; a CheckpointMismatchError if a file is absent or damaged.

    `rest` is the result of `save_parts`, or ``parts`` and some other keys, to read only these.
    """
    import torch.distributed.checkpoint as dcp  # imported here: other checkpoints do without

    for name, sha256 in rest.pop("parts").items():
        if not (folder / name).is_file() or sha256_of(folder / name) != sha256:
            raise CheckpointMismatchError(f"{folder}: {name} is absent or damaged; use an older checkpoint")
    reader = dcp.HuggingFaceStorageReader(str(folder))
    found = reader.read_metadata().state_dict_metadata
    names = [name for path, x in tree_flatten_with_path(rest)[0] if (name := keystr(path)) in found]
    whole = {name: torch.empty(found[name].size, dtype=found[name].properties.dtype) for name in names}
    dcp.load(whole, storage_reader=reader, no_dist=True)
    return tree_map_with_path(lambda path, x: whole.get(keystr(path), x), rest)


def install_loader(allow_pickle: bool = False) -> None:
    """Make mmengine load every checkpoint of the process (`load_from`, resume, test) by `read_checkpoint`.

    Its own loader can run code from the file.
    """

    def load_from_vitdense(filename: str, map_location: Any = None) -> dict:  # mmengine logs the name
        return read_checkpoint(filename, map_location, allow_pickle)

    CheckpointLoader.register_scheme(PREFIXES, load_from_vitdense, force=True)


class AtomicLocalBackend(LocalBackend):
    """mmengine's local file backend with atomic writes: a killed save leaves no truncated checkpoint.

    Set ``backend_args=dict(backend='vitdense.atomic')`` of the CheckpointHook.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        with atomic_write(filepath) as scratch:
            scratch.write_bytes(obj)


register_backend("vitdense.atomic", AtomicLocalBackend)


def is_checkpoint(path: Path) -> bool:
    """Whether there is a file, or a folder of `save_parts`."""
    return path.is_file() or Path(path, REST).is_file()
