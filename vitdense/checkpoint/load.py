"""Load exactly or raise: read, detect the scheme, rename, resize, check, and only then change the model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitdense.checkpoint.detect import WRAPPERS, detect, entries, unwrap
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import LoadReport, fill, match_exactly, same_kind, spread, stem_weight, transfer
from vitdense.checkpoint.read import parts_in_timm, read
from vitdense.checkpoint.schemes import NAMING


def load_pretrained(
    model: nn.Module,
    checkpoint: str | Path | Mapping,
    prefix: str | None = None,
    scheme: str | None = None,
    entry: str | None = None,
    resize: str = "bicubic",
    sha256: str | None = None,
    allow_pickle: bool = False,
    keep_classifier: bool = False,
    map_location: Any = "cpu",
    channels: str | Sequence[int] | None = None,
) -> LoadReport:
    """Fill a backbone exactly from a checkpoint of any known naming scheme.

    Args:
        model: Its `family` is a key of `vitdense.checkpoint.schemes.NAMING`. Changed only if everything fits.
        checkpoint: A path, an address, a name of the model table, or the content of such a file.
        prefix, scheme: See `detect`.
        entry: Entry of the file with the weights, such as ``'model_ema'`` for an average; see `unwrap`.
        resize: Rule for bias tables and absolute positions of another resolution; see `vitdense.layers.resize`.
        sha256, allow_pickle, map_location: See `read`.
        keep_classifier: Keep the ignored tensors of the classifier in the report.
        channels: How the stem gets weights for other image channels than the file's; see `with_channels`. None refuses
            another number of channels.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: A key is unknown, missing or unexpected, or has another size or dtype, or NaN or
            infinity; or the windows of pretraining are not the model's.
        ValueError: `channels` is unknown, or a list of another length or with channels that the file lacks.
    """
    is_file = not isinstance(checkpoint, Mapping)
    source = str(checkpoint) if is_file else "state dict"
    if is_file:
        checkpoint = read(checkpoint, sha256=sha256, allow_pickle=allow_pickle, map_location=map_location)
    match = detect(unwrap(checkpoint, entry), (model.family,), prefix, scheme)
    for name, theirs in parts_in_timm(checkpoint, match.family).items():
        if (ours := getattr(model.arch, name)) != theirs:
            raise CheckpointMismatchError(
                f"{source} was trained with {name}={theirs!r}, which its parameters do not show, the model has "
                f"{ours!r}: choose another arch, or set it in a dict of sizes"
            )
    report, targets = LoadReport(source, match.scheme.name), model.state_dict()
    loaded = entry or next((wrapper for wrapper in WRAPPERS if wrapper in checkpoint), None)
    if others := [name for name in entries(checkpoint) if name != loaded]:
        report.others = f"not loaded: {', '.join(others)}, with weights too (entry={others[0]!r} loads them)"
    state = transfer(match, model, report, resize)
    if not keep_classifier:
        report.classifier.clear()
    given = (*state, *report.ignored)
    # Either all keys of a pattern are missing, or none.
    patterns = NAMING[model.family].may_be_missing
    missing = [pattern for pattern in patterns if not any(re.fullmatch(pattern, key) for key in given)]
    advice = f"It is {source} with {report.scheme} names; check the arch and the options of the model. "
    stem = stem_weight(model) if hasattr(model, "stem_modules") else None  # a head has none
    if stem in state and state[stem].ndim == 4 and same_kind(state[stem], targets[stem]):
        theirs, ours = state[stem].shape[1], targets[stem].shape[1]
        if channels is not None:
            spread(state, stem, channels, ours, report)
        elif theirs != ours:
            advice += (
                f"Its images have {theirs} channels, those of the model {ours}: say how the stem gets its weights by "
                f"channels='mean', 'repeat' or a list, in init_cfg or as an argument of create. "
            )
    state = match_exactly(targets, state, missing, lambda *names: advice)
    report.count(targets, state)
    parts = {key: _part_of(value, targets[key]) for key, value in state.items()}
    fill(model, parts, is_own=is_file)
    return report


def _part_of(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor of the file for the model's tensor `like`: after `fully_shard`, the part of this process."""
    if not hasattr(like, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor  # imported here: some builds of torch lack it

    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def remap_keys_in_place(model: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
    """Rename the backbone in a state dict to our names, in place, if it has another project's names.

    Keys of other modules, which do not start with `prefix`, stay. Unknown names are a `CheckpointMismatchError`.
    """
    targets = model.state_dict()
    part = {key: value for key, value in state.items() if key.startswith(prefix)}
    if not hasattr(model, "family") or all(key.removeprefix(prefix) in targets for key in part):
        return
    match = detect(part, (model.family,), prefix)
    if match.scheme.name == "vitdense":
        return
    ours = transfer(match, model, LoadReport("state dict", match.scheme.name), is_whole=True)
    for key in part:
        del state[key]
    state.update({prefix + key: value for key, value in ours.items()})
