"""Convert checkpoints from one naming scheme to another, without loss."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from vitdense.checkpoint.detect import LISTED, Match, detect, unwrap
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import is_finite
from vitdense.checkpoint.read import parts_in_timm
from vitdense.checkpoint.rename import Scheme, find_rule, reverse
from vitdense.checkpoint.schemes import CLASSIFIER, LORA, NAMING, OUTPUT_NORMS, PERIODS, PRETRAINING, REBUILT, TOKENS
from vitdense.errors import OptionError
from vitdense.files import atomic_write
from vitdense.layers.lora import merge_lora

PARAMETERS = (".weight", ".bias")
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")  # of files to write
# Schemes of whole detectors and segmentors, and the prefix of the backbone. Names of detectron2's heads are only read,
# by `fit_whole`.
WHOLE = {
    "backbone.": ("vitdense", "mmdet", "mmseg", "official", "detectron2"),
    "backbone.bottom_up.": ("detectron2",),
    "backbone.net.": ("detectron2",),
}


@dataclass(frozen=True)
class Converted:
    """A checkpoint in another naming scheme.

    Attributes:
        match: The checkpoint before.
        scheme: The new scheme.
        ours: The backbone with our names.
        backbone: The backbone with the new names.
        state: All tensors with the new names, prefixes included.
        ignored: Buffers, by our names, for which the new scheme has no names; models rebuild them.
        left_out: Tensors of a detector or of a classifier for which the new scheme has no names.
    """

    match: Match
    scheme: Scheme
    ours: dict[str, Tensor]
    backbone: dict[str, Tensor]
    state: dict[str, Tensor]
    ignored: list[str]
    left_out: list[str]

    @property
    def is_whole(self) -> bool:
        return bool(self.match.rest) and self.match.rest.keys() <= self.state.keys()

    def __str__(self) -> str:
        names = f"{self.match.scheme.name} -> {self.scheme.name} names"
        lines = [f"{self.match.family}: {names}, {len(self.state)} tensors"]
        for what, keys in (("buffers ignored", self.ignored), ("other tensors left out", self.left_out)):
            if keys:
                lines.append(f"  {len(keys)} {what}: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}")
        return "\n".join(lines)


def convert(
    checkpoint: Mapping,
    to: str,
    prefix: str | None = None,
    scheme: str | None = None,
    windows: Sequence[int] | None = None,
    pretrained_windows: Sequence[int] | None = None,
    drop_output_norms: bool = False,
    drop_classifier: bool = False,
    merge: bool = False,
    family: str | None = None,
) -> Converted:
    """Rename a checkpoint of any known scheme to another one.

    Parameters and classifier are bit-equal, reordered where the schemes order them differently. Buffers that files of
    the new scheme contain are copied or computed.

    Args:
        checkpoint: Content of the file. Not changed.
        to: Name of the new scheme.
        prefix, scheme: See `detect`.
        windows: Sides in tokens, one or one per stage, for the buffers of Swin V2, whose parameters do not show its
            windows. Not needed if the checkpoint has the buffers.
        pretrained_windows: The same for pretraining; 0 or None means the window itself.
        drop_output_norms: Leave out the norms of a dense backbone, for which classifiers have no names.
        drop_classifier: Leave out tensors of a classifier or of masked autoencoding, and tokens, for which the new
            scheme has no names.
        merge: Add LoRA's updates to the weights.
        family: Family of the checkpoint, a key of `NAMING`; None detects it.

    Raises:
        CheckpointMismatchError: The checkpoint has no known scheme, or the new scheme has no name for a tensor.
    """
    match = detect(unwrap(checkpoint), (family,) if family else None, prefix, scheme)
    parts_in_timm(checkpoint, match.family)  # raises if our model would compute something else
    ours = match.ours
    if drop_output_norms:
        ours = {key: value for key, value in ours.items() if not re.fullmatch(OUTPUT_NORMS, key)}
    has_updates = any(re.fullmatch(LORA, key) for key in ours)
    if merge and not has_updates:
        raise CheckpointMismatchError("--merge-lora: the checkpoint has no low-rank updates (keys with .lora.)")
    if has_updates and not merge and to != "vitdense":
        raise CheckpointMismatchError(
            f"{to} names have none for low-rank updates; add them to the weights: --merge-lora"
        )
    ours = merge_lora(ours) if merge else ours
    if wrong := [key for key, x in ours.items() if not is_finite(x)]:
        raise CheckpointMismatchError(f"{len(wrong)} tensors have NaN or infinity: {', '.join(wrong[:LISTED])}")
    if wrong := [key for key, x in ours.items() if key.endswith(PARAMETERS) and not x.is_floating_point()]:
        raise CheckpointMismatchError(
            f"{len(wrong)} weights are not real numbers: {wrong[0]} is {ours[wrong[0]].dtype}; save floats"
        )
    forms = [row for row in NAMING[match.family].schemes if row.name == to and row.is_written]
    if not forms:
        names = ", ".join(dict.fromkeys(row.name for row in NAMING[match.family].schemes if row.is_written))
        raise CheckpointMismatchError(f"--to: got {to!r}, expected one of {names} for the {match.family} family")

    def nameless(form: Scheme) -> list[str]:
        names, rules = form.names_for_rules(ours), reverse(form.rules)
        return [key for key in ours if not find_rule(names[key], rules)]

    # A form with a marker is for models with such keys, so other forms come first.
    target = min(forms, key=lambda form: (len(nameless(form)), bool(form.marker)))
    absent = nameless(target)
    has_tokens = find_rule("tokens.cls_token", reverse(target.rules)) is not None
    optional = "|".join((CLASSIFIER, PRETRAINING) if has_tokens else (CLASSIFIER, PRETRAINING, TOKENS))
    left_out = [key for key in absent if drop_classifier and re.fullmatch(optional, key)]
    ignored = [key for key in absent if re.fullmatch(f"{REBUILT}|{PERIODS}", key)]
    if lost := [key for key in absent if key not in (*left_out, *ignored)]:
        raise CheckpointMismatchError(
            f"the {to} scheme of the {match.family} family has no names for {len(lost)} tensors: "
            f"{', '.join(lost[:LISTED])}; convert to vitdense, or leave out output norms by --drop-output-norms and a "
            f"classifier by --drop-classifier"
        )
    kept = {key: value for key, value in ours.items() if key not in absent}
    if make := NAMING[match.family].buffers:

        def is_wanted(key: str) -> bool:
            found = find_rule(key, reverse(target.rules))
            # A rule with "*" does not say which keys a module has.
            return key not in kept and found is not None and "*" not in found[0].sources[found[1]].text

        kept |= make(kept, is_wanted, windows, pretrained_windows)
    is_whole = bool(match.rest) and to in WHOLE.get(match.prefix, ())
    start = match.prefix if is_whole else target.prefix
    backbone = target.from_ours(kept)
    if target.marker and not any(re.fullmatch(target.marker, key) for key in backbone):
        raise CheckpointMismatchError(
            f"files with {to} names have keys such as {target.marker}, for which the checkpoint has no tensor; convert "
            f"to vitdense, or convert the authors' file"
        )
    state = {start + key: value for key, value in backbone.items()} | (match.rest if is_whole else {})
    return Converted(match, target, ours, backbone, state, ignored, [*left_out, *(() if is_whole else match.rest)])


def save(state: Mapping[str, Tensor], path: Path, wrapper: str | None = None, extra: Mapping | None = None) -> None:
    """Write tensors to a file, atomically.

    Args:
        state: Tensors by name.
        path: Its suffix is one of `SUFFIXES`; ``.safetensors``, or a torch file.
        wrapper: Entry of a torch file for the tensors; None for the top level.
        extra: Further entries of a torch file with a wrapper.
    """
    if path.suffix not in SUFFIXES:
        raise OptionError(f"got {path.name}, expected a name ending in one of {', '.join(SUFFIXES)}")
    # Clone views: torch saves the whole storage of a view.
    state = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    if path.suffix == ".safetensors":
        with atomic_write(path) as scratch:
            scratch.write_bytes(to_bytes(state))
    else:
        write_torch({wrapper: state, **(extra or {})} if wrapper else state, path)


def write_torch(content: Mapping, path: Path) -> None:
    """Write a torch file, atomically. A full disk is an OSError, which torch's own writer hides."""
    buffer = BytesIO()
    torch.save(content, buffer)
    with atomic_write(path) as scratch:
        scratch.write_bytes(buffer.getbuffer())
