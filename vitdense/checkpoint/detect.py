"""Detect the family and the naming scheme of a checkpoint from its keys."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.rename import Scheme, find_rule, new_names
from vitdense.checkpoint.schemes import NAMING

WRAPPERS = ("state_dict", "model", "model_state", "model_ema", "teacher")  # entries of a torch file with the tensors
MODULE_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # may be anywhere in a key
# Prefixes of backbones in whole models: two of detectron2, mm, SimMIM, two of image-text models, SAM 2, C-RADIO.
PREFIXES = ("backbone.bottom_up.", "backbone.net.", "backbone.", "encoder.", "visual.", "vision_model.")
PREFIXES += ("image_encoder.trunk.", "vision_encoder.backbone.", "radio_model.model.")
LISTED = 20  # keys in a message
MOST = 10_000  # tensors in a file: looking for the names of more would take minutes


@dataclass(frozen=True)
class Match:
    """The backbone in a checkpoint, read with one naming scheme."""

    family: str  # a key of `NAMING`
    scheme: Scheme  # the naming scheme
    prefix: str  # prefix of the backbone's keys in the checkpoint
    state: dict[str, Tensor]  # tensors of the backbone with the scheme's names, without the prefix
    rest: dict[str, Tensor]  # the other tensors, with their full names

    def __str__(self) -> str:
        return f"family={self.family!r} by scheme={self.scheme.name!r} with prefix={self.prefix!r}"

    @cached_property
    def ours(self) -> dict[str, Tensor]:
        """The backbone's tensors with our names; see `Scheme.to_ours`."""
        return self.scheme.to_ours(self.state)

    def faults(self) -> Iterator[str]:
        """Keys that the scheme does not know; if there are none, markers of scheme and family that no key matches."""
        unknown = False
        for key in self.state:
            if find_rule(key, self.scheme.rules) is None:
                unknown = True
                yield key
        if unknown:
            return
        wanted = [(self.scheme.marker, tuple(self.state))] if self.scheme.marker else []
        if markers := NAMING[self.family].markers:
            ours = tuple(new_names(self.state, self.scheme.rules))
            wanted += [(marker, ours) for marker in markers]
        yield from (f"{m} (missing)" for m, keys in wanted if not any(re.fullmatch(m, key) for key in keys))


def entries(checkpoint: Mapping) -> dict[str, Mapping]:
    """The entries of a file that hold weights by name, such as ``model`` and an average of it in ``model_ema``."""
    number = {
        key: sum(isinstance(value, Tensor) and isinstance(name, str) for name, value in entry.items())
        for key, entry in checkpoint.items()
        if isinstance(entry, Mapping)
    }
    return {key: checkpoint[key] for key, n in number.items() if n and 2 * n >= max(number.values())}


def unwrap(checkpoint: Mapping, entry: str | None = None) -> dict[str, Tensor]:
    """The tensors in the content of a checkpoint file, without wrappers.

    Wrappers are entries such as ``state_dict`` and, in keys, prefixes of DDP, `torch.compile`, FSDP and activation
    checkpointing. `entry` is the entry with the tensors; None tries the usual ones, see `WRAPPERS`. It is a
    `CheckpointMismatchError` if there are no tensors or no such entry, or two keys become the same.
    """
    if entry is not None:
        if not isinstance(checkpoint.get(entry), Mapping):
            found = ", ".join(entries(checkpoint)) or "none with weights"
            raise CheckpointMismatchError(f"entry: got {entry!r}, expected an entry of the file: {found}")
        checkpoint = checkpoint[entry]
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
    tensors = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor) and isinstance(key, str)}
    if len(tensors) > MOST:
        raise CheckpointMismatchError(
            f"got {len(tensors)} tensors by name, expected the weights of a model, up to {MOST}"
        )
    if not tensors:
        raise CheckpointMismatchError(
            f"no tensors by name in the checkpoint; its keys are {list(checkpoint)[:LISTED]}, expected parameters by "
            f"name, or one of {', '.join(WRAPPERS)}"
        )
    is_plain = {key: x.layout == torch.strided and not (x.is_quantized or x.is_meta) for key, x in tensors.items()}
    if unusual := [key for key, plain in is_plain.items() if not plain]:
        raise CheckpointMismatchError(
            f"{len(unusual)} tensors of the checkpoint are quantised, sparse or without values: "
            f"{', '.join(unusual[:LISTED])}; save dense weights"
        )
    names = re.compile(rf"(^|(?<=\.))({'|'.join(map(re.escape, MODULE_WRAPPERS))})")
    state = {names.sub("", key): value for key, value in tensors.items()}
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    if len(state) < len(tensors):
        raise CheckpointMismatchError(
            f"the checkpoint holds the same parameters with and without {' or '.join(MODULE_WRAPPERS)} in their names; "
            f"save the state_dict() of one model"
        )
    return state


def readings(
    state: Mapping[str, Tensor],
    families: Iterable[str] | None = None,
    prefix: str | None = None,
    scheme: str | None = None,
) -> list[Match]:
    """Every match of a state dict. For arguments and errors see `detect`."""
    tried = _tried(state, NAMING if families is None else families, prefix, scheme)
    fits = [match for match in tried if next(match.faults(), None) is None]
    # Prefer matches of every key of the file. The others treat some keys as heads and necks.
    return [match for match in fits if not match.rest] or fits


def detect(
    state: Mapping[str, Tensor],
    families: Iterable[str] | None = None,
    prefix: str | None = None,
    scheme: str | None = None,
) -> Match:
    """Find the backbone in a state dict.

    Args:
        state: From `unwrap`.
        families: Possible families; None for all.
        prefix: Prefix of the backbone's keys, such as ``'backbone.'``; None tries the usual ones.
        scheme: Name of the naming scheme; None detects it.

    Raises:
        CheckpointMismatchError: No scheme knows every key, or two do and differ in the family or the new names.
    """
    families = tuple(NAMING if families is None else families)
    names = dict.fromkeys(row.name for family in families for row in NAMING[family].schemes)
    if scheme is not None and scheme not in names:
        raise CheckpointMismatchError(f"scheme: got {scheme!r}, expected one of {', '.join(names)}")
    if fits := readings(state, families, prefix, scheme):
        if len(fits) > 1 and len({_reading(match) for match in fits}) > 1:
            raise CheckpointMismatchError(
                f"the keys fit several readings: {', '.join(map(str, fits))}; choose one, in a config in "
                f"init_cfg=dict(type='Pretrained', checkpoint=..., scheme=..., prefix=...), which reads the model's "
                f"family; of vitdense convert by --family, --scheme and --prefix"
            )
        return fits[0]
    if prefix is None and (starts := _prefixes(state, families, scheme)):
        example = f"prefix={starts[0]!r}"
        raise CheckpointMismatchError(
            f"keys of the {' or '.join(families)} family begin with {' or '.join(map(repr, starts))}: give {example}, "
            f"as an argument of create or in a config in init_cfg=dict(type='Pretrained', checkpoint=..., {example}); "
            f"of vitdense convert --prefix {starts[0]}"
        )
    # With equal shares, `min` takes the first, which is of a requested family.
    tried = _tried(state, dict.fromkeys((*families, *NAMING)), prefix, scheme)
    near = [(match, [*match.faults()]) for match in tried]
    nearest, faults = min(near, key=lambda pair: len(pair[1]) / len(pair[0].state))
    if not faults:
        of_ours = [named for match, named in near if match.family in families and all("(missing)" in x for x in named)]
        lacks = f"; as one of {' or '.join(families)} it lacks {', '.join(of_ours[0])}" if of_ours else ""
        raise CheckpointMismatchError(
            f"expected a checkpoint of the {' or '.join(families)} family, got one of {nearest.family} "
            f"({nearest.scheme.name} names); use the backbone of that family{lacks}"
        )
    raise CheckpointMismatchError(
        f"not a checkpoint of the {' or '.join(families)} family in a known naming scheme; the nearest scheme is "
        f"{nearest.scheme.name!r} of {nearest.family}, with prefix={nearest.prefix!r}: {len(faults)} of "
        f"{len(nearest.state)} keys do not fit: {', '.join(faults[:LISTED])}"
    )


def _reading(match: Match) -> tuple:
    transforms = (find_rule(key, match.scheme.rules)[0].transform for key in match.state)
    return match.family, tuple(match.ours), tuple(transform and transform.forward for transform in transforms)


def _prefixes(state: Mapping[str, Tensor], families: Iterable[str], scheme: str | None) -> list[str]:
    """The prefixes of whole backbones with a quarter of the keys or more; if they differ in size, of the largest."""
    starts = Counter(key[: dot.end()] for key in state for dot in re.finditer(r"\.", key))
    large = {start: number for start, number in starts.items() if 4 * number > len(state)}
    found = {start: number for start, number in large.items() if readings(state, families, start, scheme)}
    return [start for start, number in found.items() if number == max(found.values())]


def _tried(state: Mapping[str, Tensor], families: Iterable[str], prefix: str | None, scheme: str | None) -> list[Match]:
    starts = ("", *PREFIXES)
    if prefix is not None:
        starts = (prefix if prefix.endswith(".") or not prefix else f"{prefix}.",)
    schemes = [(family, row) for family in families for row in NAMING[family].schemes if scheme in (None, row.name)]
    parts = []
    for start in starts:
        part = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        rest = {key: value for key, value in state.items() if not key.startswith(start)}
        parts += [(start, part, rest)] if part else []
    if not parts:
        raise CheckpointMismatchError(
            f"prefix: no key starts with {starts[0]!r}; the first keys are {', '.join(list(state)[:5])}"
        )
    return [Match(*one, *part) for one in schemes for part in parts]
