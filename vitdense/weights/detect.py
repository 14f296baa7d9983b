"""Which family and naming scheme a checkpoint is of, never guessed: from its keys, and where two forms of a scheme have
the same ones, from the shapes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitdense.weights.changes import FLAT_POSITION, OUT_KERNEL, QKV_BIAS, QKV_KERNEL, TOKEN_POSITION
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import find_rule
from vitdense.weights.sources import SCHEMES, Scheme

WRAPPERS = ("state_dict", "model", "model_state", "model_ema")
# Of detectron2's and of mm's whole models, and of training states and parameters of JAX.
PREFIXES = ("backbone.bottom_up.", "backbone.net.", "backbone.", "opt/target/", "params/")
HEADS_AXIS = {QKV_KERNEL: 1, QKV_BIAS: 0, OUT_KERNEL: 0}  # where JAX's kernels keep the heads apart
LISTED = 20  # keys in a message


@dataclass(frozen=True)
class Found:
    """The backbone in a checkpoint.

    Attributes:
        family: Of `SCHEMES`.
        scheme: Its naming scheme.
        prefix: What stood before its keys.
        state: Its tensors by the scheme's names.
        rest: The other tensors of a whole model, by their full names.
    """

    family: str
    scheme: Scheme
    prefix: str
    state: dict[str, Tensor]
    rest: dict[str, Tensor]

    def ours(self) -> dict[str, Tensor]:
        """The backbone's tensors by our names; see `Scheme.to_ours`."""
        return self.scheme.to_ours(self.state)

    def meaning(self) -> dict[str, tuple]:
        """What every key is taken for: equal where two schemes do not contradict each other."""
        found = {key: find_rule(key, self.scheme.rules) for key in self.state}
        return {
            self.prefix + key: (
                tuple(target.fill(values) for target in rule.targets if target.text not in rule.optional),
                rule.change,
            )
            for key, (rule, _, values) in found.items()
        }

    def flat_positions(self) -> tuple[int, range] | None:
        """Where its absolute positions do not tell height from width: how many they are, and of how many tokens beside
        the map some of them may be."""
        for key, value in self.state.items():
            rule, _, _ = find_rule(key, self.scheme.rules)
            if rule.change in (FLAT_POSITION, TOKEN_POSITION):
                return value.shape[1], range(len(rule.targets))
        return None

    def heads(self) -> dict[str, set[int]]:
        """Heads of every attention by its name of ours, where the checkpoint tells them; not one where it contradicts
        itself."""
        told: dict[str, set[int]] = {}
        for key, value in self.state.items():
            rule, _, values = find_rule(key, self.scheme.rules)
            if rule.change in HEADS_AXIS:
                attention = rule.targets[0].fill(values).rsplit(".", 2)[0]
                told.setdefault(attention, set()).add(value.shape[HEADS_AXIS[rule.change]])
        return told

    def faults(self) -> list[str]:
        """Keys that the scheme does not know, and keys it cannot be without."""
        unknown = [key for key in self.state if find_rule(key, self.scheme.rules) is None]
        return unknown + [f"{key} (absent)" for key in self.lacks()]

    def lacks(self) -> list[str]:
        """Keys that it cannot be without, if it merges patches at all."""
        merges = any(".downsample." in key for key in self.state)
        return [key for key in self.scheme.needs if merges and key not in self.state]


def unwrap(checkpoint: Mapping) -> dict[str, Tensor]:
    """The tensors of a checkpoint: wrappers such as ``state_dict`` opened, ``module.`` of DDP removed.

    Raises:
        CheckpointMismatchError: There are none.
    """
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor) and isinstance(key, str)}
    if not state:
        raise CheckpointMismatchError(
            f"no tensors by name in the checkpoint; its keys are {list(checkpoint)[:LISTED]}, expected parameters by "
            f"name, plain or under one of {', '.join(WRAPPERS)}"
        )
    odd = [key for key, value in state.items() if value.layout != torch.strided or value.is_meta or value.is_quantized]
    if odd:
        raise CheckpointMismatchError(
            f"{len(odd)} tensors are sparse, quantised or without content, expected dense ones: "
            f"{', '.join(odd[:LISTED])}"
        )
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def detect(
    state: Mapping[str, Tensor],
    families: Iterable[str] = tuple(SCHEMES),
    prefix: str | None = None,
    scheme: str | None = None,
) -> Found:
    """Find the backbone in a state dict.

    Args:
        state: From `unwrap`.
        families: Those it may be of.
        prefix: Of the backbone's keys, such as ``'backbone.'``; None finds the usual ones.
        scheme: Name of the naming scheme; None detects it.

    Raises:
        CheckpointMismatchError: No scheme knows every key, or two do that contradict each other.
    """
    families = tuple(families)
    parts = _parts(state, prefix)
    if scheme is not None and scheme not in (names := _names(families)):
        raise CheckpointMismatchError(f"scheme: got {scheme!r}, expected one of {', '.join(names)}")

    def candidates(families: Iterable[str]) -> list[Found]:
        return [
            Found(family, row, start, part, rest)
            for family in families
            for row in SCHEMES[family]
            if scheme in (None, row.name)
            for start, part, rest in parts
        ]

    fits = [found for found in candidates(families) if _fits(found)]
    # One that explains every key of the file is better than one that takes some for heads and necks.
    fits = [found for found in fits if not found.rest] or fits
    if fits and not _contradict(fits):
        return fits[0]
    if (readable := [found for found in fits if _is_readable(found)]) and not _contradict(readable):
        return readable[0]
    if fits := readable or fits:
        raise CheckpointMismatchError(
            f"the keys fit more than one naming scheme, and these contradict each other: "
            f"{', '.join(dict.fromkeys(found.scheme.name for found in fits))}; name the one it is by {_choice(fits)}"
        )
    # Of two that are equally near, the one that is wanted.
    everywhere = [(found, found.faults()) for found in candidates(dict.fromkeys((*families, *SCHEMES)))]
    nearest, faults = min(everywhere, key=lambda pair: len(pair[1]) / max(len(pair[0].state), 1))
    if not faults:
        raise CheckpointMismatchError(
            f"expected a checkpoint of the {' or '.join(families)} family, got one of {nearest.family} "
            f"({nearest.scheme.name} names); use the backbone of that family"
        )
    raise CheckpointMismatchError(
        f"not a checkpoint of the {' or '.join(families)} family in a known naming scheme; the nearest is "
        f"{nearest.scheme.name!r} of {nearest.family}"
        + (f" under the prefix {nearest.prefix!r}" if nearest.prefix else "")
        + f", which does not know {len(faults)} of {len(nearest.state)} keys: {', '.join(faults[:LISTED])}"
    )


def _contradict(fits: Sequence[Found]) -> bool:
    return any(found.meaning() != fits[0].meaning() for found in fits[1:])


def _choice(fits: Sequence[Found]) -> str:
    """What tells candidates apart: their prefixes, if those of one prefix agree; else their names."""
    first = {found.prefix: found.meaning() for found in reversed(fits)}
    what = "prefix" if len(first) > 1 and all(found.meaning() == first[found.prefix] for found in fits) else "scheme"
    values = dict.fromkeys(repr(found.prefix if what == "prefix" else found.scheme.name) for found in fits)
    return f"{what}={' or '.join(values)}, in a config init_cfg=dict(type='Pretrained', checkpoint=..., {what}=...)"


def _names(families: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(row.name for family in families for row in SCHEMES[family]))


def _fits(found: Found) -> bool:
    return not found.lacks() and all(find_rule(key, found.scheme.rules) for key in found.state)


def _is_readable(found: Found) -> bool:
    """Whether the shapes are those of the scheme: the number of axes of a position embedding tells two forms apart."""
    try:
        found.ours()
    except CheckpointMismatchError:
        return False
    return True


def _parts(state: Mapping[str, Tensor], prefix: str | None) -> list[tuple[str, dict, dict]]:
    """Ways to see a backbone in a state dict: its prefix, its tensors without it, and the rest."""
    if prefix is None:
        starts = ("", *PREFIXES)
    else:
        starts = (prefix,) if prefix.endswith(("/", ".")) or not prefix else (f"{prefix}.", f"{prefix}/")
    parts = []
    for start in starts:
        part = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        if part:
            parts.append((start, part, {key: value for key, value in state.items() if not key.startswith(start)}))
    if not parts:
        raise CheckpointMismatchError(
            f"no key starts with {' or '.join(map(repr, starts))}; the first are {', '.join(list(state)[:5])}; leave "
            f"prefix out to have the usual ones found"
        )
    return parts
