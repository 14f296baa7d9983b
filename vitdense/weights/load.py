"""Load exactly or raise: read, unwrap, detect the scheme, rename, resize, check, and only then touch the model."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitdense.layers.resize import resize_bias_table, resize_grid
from vitdense.weights.rename import CheckpointMismatchError, find_rule, rename
from vitdense.weights.sources import FRESH, SCHEMES, Scheme

WRAPPERS = ("state_dict", "model", "model_state", "model_ema")
PREFIXES = ("backbone.bottom_up.", "backbone.")
TABLE = "relative_position_bias_table"
# Of numpy arrays and scalars: data, not code.
_multiarray = np.core.multiarray if np.lib.NumpyVersion(np.__version__) < "2.0.0" else np._core.multiarray
NUMPY_GLOBALS = (
    *(
        (getattr(_multiarray, name), f"numpy.{core}.multiarray.{name}")  # of files written under numpy 1 and 2
        for name in ("_reconstruct", "scalar")
        for core in ("core", "_core")
    ),
    bytes,  # of an empty array
    np.ndarray,
    np.dtype,
    *{type(np.dtype(t)) for t in ("float64", "float32", "int64", "int32", "uint32", "uint8", "bool")},
)


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint where one was looked for."""


@dataclass
class LoadReport:
    """What a load did: names by what became of them, and the share of the model's parameters that was filled."""

    source: str
    scheme: str
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, tuple[tuple, tuple]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    share: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.source} ({self.scheme} names): {len(self.loaded)} tensors loaded, {len(self.resized)} of them "
            f"resized, {len(self.dropped)} dropped on purpose, {len(self.fresh)} fresh; "
            f"{100 * self.share:.2f} % of the parameters filled"
        )


def read(checkpoint: str | Path, allow: Sequence = ()) -> dict:
    """Read a checkpoint file without running code from it.

    Args:
        checkpoint: Path to a ``.safetensors`` file or a torch file, or an ``https://`` address (cached by torch).
        allow: What may stand beside tensors, numbers and numpy arrays, as for `torch.serialization.safe_globals`.

    Raises:
        CheckpointNotFoundError: No such file, or the address cannot be reached.
        CheckpointMismatchError: The file is not a checkpoint, or a pickle that would run code.
    """
    name = str(checkpoint)
    if name.startswith(("https://", "http://")):
        return read(download(name), allow)
    path = Path(name).expanduser()
    if not path.is_file():
        raise CheckpointNotFoundError(
            f"checkpoint {path} is not a file; put it there, give another path, or set init_cfg=None"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([*NUMPY_GLOBALS, *allow]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's and safetensors' parsers raise what they stumble over
        raise CheckpointMismatchError(
            f"{path} is not a checkpoint that can be read without running code from it "
            f"({type(error).__name__}: {error})"
        ) from error


def download(address: str) -> Path:
    """Fetch a file into torch's cache of checkpoints, unless it is there, and return where it is.

    Raises:
        CheckpointNotFoundError: The address cannot be reached.
    """
    # By the whole address: model.pth is a name that many files have.
    folder = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(torch.hub.get_dir()) / "checkpoints" / folder / Path(urlparse(address).path).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(path))  # under a temporary name, then renamed
        except OSError as error:
            raise CheckpointNotFoundError(
                f"checkpoint {address} cannot be fetched ({error}); download it where there is a network and give its "
                f"path, or train from scratch with --cfg-options model.backbone.init_cfg=None"
            ) from error
    return path


def unwrap(checkpoint: Mapping, prefix: str | None = None) -> dict[str, Tensor]:
    """The backbone's tensors of a checkpoint: wrappers opened, the rest of a whole detector left out.

    Args:
        checkpoint: What the file holds.
        prefix: Of the keys to keep, such as ``'backbone.'``; None finds the usual ones.

    Raises:
        CheckpointMismatchError: There are no tensors, or none under `prefix`.
    """
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    if not state:
        raise CheckpointMismatchError(f"no tensors in the checkpoint; its keys are {list(checkpoint)[:10]}")
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    prefixes = PREFIXES if prefix is None else (prefix.rstrip(".") + ".",)
    for start in prefixes:
        part = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        if part:
            return part
    if prefix is not None:
        raise CheckpointMismatchError(f"no key starts with {prefixes[0]!r}; the first are {list(state)[:5]}")
    return state


def detect(keys: Mapping[str, Tensor], family: str) -> Scheme:
    """The one naming scheme of `family` that knows every key.

    Raises:
        CheckpointMismatchError: None does, or more than one.
    """
    unknown = {s.name: [key for key in keys if find_rule(key, s.rules) is None] for s in SCHEMES[family]}
    fits = [scheme for scheme in SCHEMES[family] if not unknown[scheme.name]]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise CheckpointMismatchError(f"the keys fit more than one naming scheme: {', '.join(s.name for s in fits)}")
    nearest = min(unknown, key=lambda name: len(unknown[name]))
    raise CheckpointMismatchError(
        f"not a checkpoint of the {family} family in a known naming scheme; the nearest is {nearest!r}, "
        f"which does not know {len(unknown[nearest])} of {len(keys)} keys: {', '.join(unknown[nearest][:20])}"
    )


def fit(key: str, value: Tensor, model: nn.Module, target: Tensor) -> Tensor:
    """`value` at the resolution of `target`: bias tables and absolute positions are resized, nothing else.

    Raises:
        CheckpointMismatchError: The shapes differ in more than resolution.
    """
    if value.shape == target.shape:
        return value
    if key.endswith(TABLE) and value.ndim == 2 and value.shape[1] == target.shape[1]:
        side = math.isqrt(value.shape[0])
        if side * side != value.shape[0] or side % 2 == 0:
            raise CheckpointMismatchError(f"{key} has {value.shape[0]} rows, which no square window has")
        old = (side + 1) // 2
        return resize_bias_table(value, (old, old), model.get_submodule(key.rpartition(".")[0]).window)
    if key == "absolute_pos_embed.table" and value.ndim == 4 and value.shape[-1] == target.shape[-1]:
        return resize_grid(value, tuple(target.shape[1:3]))
    raise CheckpointMismatchError(
        f"{key} has shape {tuple(value.shape)} in the checkpoint but {tuple(target.shape)} in the model: "
        f"weights of another size of this family, or other options"
    )


def match_exactly(model: nn.Module, state: Mapping[str, Tensor], fresh: Sequence[str] = ()) -> dict[str, Tensor]:
    """The tensors of a state dict that fill a whole model (a detector, a segmentor) of the same names.

    Args:
        model: Not changed.
        state: Tensors by name; a prefix ``module.`` of all is ignored.
        fresh: Regular expressions of names that may be missing, left over or of another shape.

    Raises:
        CheckpointMismatchError: Anything else is; all are listed.
    """
    theirs = {key.removeprefix("module."): value for key, value in state.items()}
    ours = model.state_dict()
    faults = {
        "missing": [key for key in ours if key not in theirs],
        "left over": [key for key in theirs if key not in ours],
        "of another shape": [key for key in ours if key in theirs and ours[key].shape != theirs[key].shape],
    }
    excused = {key for keys in faults.values() for key in keys if any(re.fullmatch(p, key) for p in fresh)}
    faults = {what: [key for key in keys if key not in excused] for what, keys in faults.items()}
    if any(faults.values()):
        listed = "; ".join(f"{len(keys)} {what}: {', '.join(keys[:10])}" for what, keys in faults.items() if keys)
        raise CheckpointMismatchError(
            f"the checkpoint does not fit the model exactly: {listed}. Give the config it was trained with; to "
            f"fine-tune, name what may stay fresh: custom_hooks=[dict(type='vitdense.ExactLoadHook', fresh=[...])]"
        )
    return {key: value for key, value in theirs.items() if key not in excused}


def load_pretrained(
    model: nn.Module, checkpoint: str | Path | Mapping, prefix: str | None = None, allow: Sequence = ()
) -> LoadReport:
    """Fill a backbone from a checkpoint of any known naming scheme, exactly.

    Args:
        model: Has a `family` of `vitdense.weights.sources.SCHEMES`. Changed only when everything fits.
        checkpoint: A path, an address, or what such a file holds.
        prefix: See `unwrap`.
        allow: See `read`.

    Returns:
        What was loaded, resized, dropped and left fresh.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: A key is unknown, missing, left over or of another shape.
    """
    source = "state dict" if isinstance(checkpoint, Mapping) else str(checkpoint)
    state = unwrap(checkpoint if isinstance(checkpoint, Mapping) else read(checkpoint, allow), prefix)
    scheme = detect(state, model.family)
    renamed, dropped = rename(state, scheme.rules)
    targets = model.state_dict()
    report = LoadReport(source, scheme.name, dropped=dropped)

    def is_optional(key: str) -> bool:
        return any(re.fullmatch(pattern, key) for pattern in FRESH)

    report.dropped += [key for key in renamed if key not in targets and is_optional(key)]
    renamed = {key: value for key, value in renamed.items() if key in targets or not is_optional(key)}
    missing = [key for key in targets if key not in renamed]
    # A classification checkpoint has no output norm at all; one that has some must have all that are needed.
    if not any(is_optional(key) for key in (*renamed, *report.dropped)):
        report.fresh = [key for key in missing if is_optional(key)]
        missing = [key for key in missing if not is_optional(key)]
    left_over = [key for key in renamed if key not in targets]
    if missing or left_over:
        raise CheckpointMismatchError(
            f"{source} ({scheme.name} names) is not a checkpoint of this model: "
            f"{len(missing)} keys missing: {', '.join(missing[:20])}; {len(left_over)} left over: "
            f"{', '.join(left_over[:20])}"
        )
    fitted = {key: fit(key, value, model, targets[key]) for key, value in renamed.items()}
    report.loaded = list(fitted)
    report.resized = {
        key: (tuple(renamed[key].shape), tuple(value.shape))
        for key, value in fitted.items()
        if value.shape != renamed[key].shape
    }
    report.share = sum(value.numel() for value in fitted.values()) / sum(value.numel() for value in targets.values())
    model.load_state_dict({key: fitted.get(key, value) for key, value in targets.items()}, strict=True)
    return report
