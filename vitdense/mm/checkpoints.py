"""Checkpoints of mmengine: loaded without running code in them, and written atomically."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader, get_torchvision_models
from mmengine.utils import digit_version
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_with_path

import vitdense
from vitdense.checkpoint.errors import CheckpointMismatchError, naming_option
from vitdense.checkpoint.read import read, run_globals
from vitdense.families import is_whole
from vitdense.files import atomic_write, sha256_of

REST = "rest.pth"  # in the folder of a checkpoint in parts: everything else, and the digests of the parts
SCRATCH = ".parts"  # folder of an incomplete checkpoint
# "" is mmengine's loader of local paths and of every prefix without a loader of its own.
PREFIXES = ("", "http://", "https://", "timm://", "hf://", "torchvision://")
RUN_GLOBALS = run_globals(HistoryBuffer)  # with the log history, which mmengine saves and restores on resume


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_count(value: object) -> bool:
    return value is None or is_whole(value, 0)


def _is_list_of(kind: type) -> Callable[[object], bool]:
    return lambda value: (
        value is None or (isinstance(value, (list, tuple)) and all(isinstance(one, kind) for one in value))
    )


def _are_names(value: object) -> bool:
    return isinstance(value, str) or _is_list_of(str)(value)


def _are_colours(value: object) -> bool:
    try:
        colours = np.array([] if value is None else value)
    except ValueError:  # rows of several lengths
        return False
    return not colours.size or (colours.dtype.kind in "iu" and colours.ndim == 2 and colours.shape[1] == 3)


def _is_version(value: object) -> bool:
    try:
        return bool(digit_version(value))
    except (TypeError, ValueError):
        return False


# Fields that a checkpoint may have, and what they are; None is of older files.
FIELDS = {
    **dict.fromkeys(("meta", "hooks", "ema_state_dict", "meta.dataset_meta"), _is_dict),
    **dict.fromkeys((f"meta.{key}" for key in ("epoch", "iter", "validated", "seed", "images_per_step")), _is_count),
    **dict.fromkeys((f"meta.dataset_meta.{key}" for key in ("classes", "thing_classes", "keypoints")), _are_names),
    "meta.CLASSES": _are_names,
    "meta.vitdense_version": _is_version,
    "meta.dataset_meta.category_ids": _is_list_of(int),
    "meta.dataset_meta.skeleton": _is_list_of((list, tuple)),
    "meta.dataset_meta.palette": _are_colours,
}
# Fields to resume from, none of them absent.
RESUMED = {
    **dict.fromkeys(("meta", "message_hub", "optimizer", "state_dict"), _is_dict),
    **dict.fromkeys((f"message_hub.{key}" for key in ("log_scalars", "runtime_info")), _is_dict),
    **dict.fromkeys(("meta.epoch", "meta.iter"), lambda value: is_whole(value, 0)),
    "param_schedulers": lambda value: isinstance(value, (dict, list)),
    "message_hub.resumed_keys": lambda value: _is_dict(value) and all(isinstance(one, bool) for one in value.values()),
}


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
            saved = read(filename, allow=RUN_GLOBALS, allow_pickle=allow_pickle, map_location=map_location)
    except CheckpointMismatchError as error:
        if "allow_pickle" not in str(error):
            raise
        raise CheckpointMismatchError(
            f"{error}. For the checkpoint of a run (load_from, resume, test, predict) the config sets it by "
            f"default_hooks=dict(exact_load=dict(type='vitdense.ExactLoadHook', allow_pickle=True))"
        ) from error
    check_fields(saved, filename)
    if written := saved.get("meta", {}).get("vitdense_version"):
        if digit_version(written)[:3] > digit_version(vitdense.__version__)[:3]:
            raise CheckpointMismatchError(
                f"{filename}: vitdense {written} wrote it, and this is {vitdense.__version__}; install that version"
            )
        if map_location != "meta":  # other projects' may have no checksums
            check_sums(filename)
    return saved


def check_sums(file: str) -> None:
    """Raise a CheckpointMismatchError if a checksum in a torch file is wrong: torch does not compare them."""
    if is_zipfile(file) and (damaged := ZipFile(file).testzip()):
        raise CheckpointMismatchError(f"{file} is damaged: the checksum of {damaged} is wrong; use an older one")


def check_fields(
    saved: Mapping[str, Any],
    file: str,
    fields: Mapping[str, Callable[[object], bool]] = FIELDS,
) -> None:
    """Raise a CheckpointMismatchError if a field, or one of `RESUMED` is absent, has another type than is written."""
    for name, fits in fields.items():
        *above, key = name.split(".")
        node = saved
        for part in above:
            node = node.get(part, {})
        if not fits(node[key]) if key in node else fields is RESUMED:
            got = " ".join(repr(node[key])[:60].split()) if key in node else "absent"
            raise CheckpointMismatchError(
                f"{file}: got {name} {got}, which no training writes: the file is damaged; use another checkpoint"
            )


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
        checkpoint = read_checkpoint(filename, map_location, allow_pickle)
        checkpoint.get("meta", {}).pop("config", None)  # of mmcv 1; mmengine runs its text as Python to resume
        return checkpoint

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
