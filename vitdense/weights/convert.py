"""Checkpoints from one naming scheme to another, without loss."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitdense.files import atomic_write
from vitdense.layers.bias import log_spaced_offsets, relative_position_index
from vitdense.weights.changes import VIT_SIZES
from vitdense.weights.detect import LISTED, Found, detect, unwrap
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.rename import find_rule, reverse
from vitdense.weights.sources import CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, SCHEMES, TOKENS, Scheme

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")  # of files to write
# Schemes in which whole detectors and segmentors are kept, by what stands before their backbones. The rest of a
# detectron2 model has names that only detectron2 knows.
WHOLE = {
    "backbone.": ("vitdense", "mmdet", "mmseg", "official", "detectron2"),
    "backbone.bottom_up.": ("detectron2",),
    "backbone.net.": ("detectron2",),
}


@dataclass(frozen=True)
class Converted:
    """A checkpoint under another naming scheme.

    Attributes:
        found: What it was.
        scheme: What it is.
        ours: The backbone by our names.
        backbone: The backbone by the new names.
        state: All its tensors by the new names, prefixes included.
        dropped: Tensors that the new scheme has no place for and that are rebuilt, by our names.
        left_out: Tensors of a detector or of a classifier, for which the new scheme has no names.
    """

    found: Found
    scheme: Scheme
    ours: dict[str, Tensor]
    backbone: dict[str, Tensor]
    state: dict[str, Tensor]
    dropped: list[str]
    left_out: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether it is of a detector or segmentor, and stays one."""
        return bool(self.found.rest) and self.found.rest.keys() <= self.state.keys()

    def __str__(self) -> str:
        names = f"{self.found.scheme.name} -> {self.scheme.name} names"
        lines = [f"{self.found.family}: {names}, {len(self.state)} tensors"]
        if flat := self.found.flat_positions():
            h, w = self.ours["absolute_pos_embed.table"].shape[1:3]
            beside = flat[0] - h * w
            with_tokens = f" and of {beside} token{'s' * (beside > 1)}" if beside else ""
            lines.append(f"  {flat[0]} positions read as a grid of {h}x{w}{with_tokens}")
        left = {"that are rebuilt": self.dropped, "beside the backbone": self.left_out}
        for what, keys in left.items():
            if keys:
                lines.append(f"  {len(keys)} {what} left out: {', '.join(keys[:3])}{', ...' * (len(keys) > 3)}")
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
) -> Converted:
    """Rename a checkpoint of any known scheme into another.

    Parameters are carried over bit by bit, reordered where the schemes order them differently; so is the classifier.
    Buffers that a scheme keeps in its files are carried over or made.

    Args:
        checkpoint: What the file holds. Not changed.
        to: Name of the scheme wanted.
        prefix: See `detect`.
        scheme: See `detect`.
        windows: For the buffers of Swin V2, whose parameters do not tell its windows: sides in tokens, one or one per
            stage. Not needed where the checkpoint holds the buffers.
        pretrained_windows: Likewise, where the coordinates are relative to another window.
        drop_output_norms: Leave out the norms of a dense backbone, which classifiers have no names for.
        drop_classifier: Leave out what the new scheme has no names for of a classifier, of masked autoencoding, and of
            the tokens beside the map if it has none.

    Raises:
        CheckpointMismatchError: Not a known checkpoint, or it holds what the scheme has no place for.
    """
    found = detect(unwrap(checkpoint), prefix=prefix, scheme=scheme)
    ours = found.ours()
    _check_heads(found, ours)
    if drop_output_norms:
        ours = {key: value for key, value in ours.items() if not re.fullmatch(OUTPUT_NORMS, key)}
    forms = [row for row in SCHEMES[found.family] if row.name == to]
    if not forms:
        names = ", ".join(dict.fromkeys(row.name for row in SCHEMES[found.family]))
        raise CheckpointMismatchError(f"--to: got {to!r}, expected one of {names} for the {found.family} family")

    rebuilt = {key for key in ours if re.fullmatch(REBUILT, key)}

    def without_place(form: Scheme) -> list[str]:
        names = form.names_for_rules(ours)
        rules = reverse(form.rules)
        return [key for key in ours if not find_rule(names[key], rules)]

    target = min(forms, key=lambda form: (len(without_place(form)), not form.suits(ours)))
    absent = without_place(target)
    has_tokens = find_rule("tokens.cls_token", reverse(target.rules)) is not None
    beside = "|".join((CLASSIFIER, PRETRAINING) if has_tokens else (CLASSIFIER, PRETRAINING, TOKENS))
    left_out = [key for key in absent if drop_classifier and re.fullmatch(beside, key)]
    dropped = [key for key in absent if key in rebuilt]
    if lost := [key for key in absent if key not in (*left_out, *dropped)]:
        hints = {
            OUTPUT_NORMS: "leave out the output norms by --drop-output-norms",
            beside: "leave them out by --drop-classifier",
        }
        hint = [f"; or {hint}" for pattern, hint in hints.items() if re.fullmatch(pattern, lost[0])]
        raise CheckpointMismatchError(
            f"the {to} scheme of the {found.family} family has no names for {len(lost)} tensors: "
            f"{', '.join(lost[:LISTED])}; convert to vitdense, which has{''.join(hint)}"
        )
    absent = set(absent)
    kept = {key: value for key, value in ours.items() if key not in absent}
    kept |= _buffers(kept, target, windows, pretrained_windows)
    whole = bool(found.rest) and to in WHOLE.get(found.prefix, ())
    start = found.prefix if whole else target.prefix
    backbone = target.from_ours(kept)
    state = {start + key: value for key, value in backbone.items()} | (found.rest if whole else {})
    return Converted(found, target, ours, backbone, state, dropped, [*left_out, *(() if whole else found.rest)])


def _check_heads(found: Found, ours: Mapping[str, Tensor]) -> None:
    """Names of others cannot carry the heads that Google's kernels tell, unless the width tells them as well."""
    for attention, told in found.heads().items():
        width = ours[f"{attention}.qkv.weight"].shape[1] if f"{attention}.qkv.weight" in ours else 0
        known = VIT_SIZES.get(width, ("", 0, 0))[2]
        if told != {known}:
            raise CheckpointMismatchError(
                f"{attention} has {' or '.join(map(str, sorted(told)))} heads of a width of {width}, where the "
                f"published models have {known or 'none'}: other names do not carry them, and the converted file would "
                f"be read as any other; give the file as it is to a model of an arch with these num_heads, which "
                f"checks them"
            )


def of_stage(values: Sequence[int], stage: int) -> int:
    """The value of a stage, where one value stands for all or each has its own.

    Raises:
        CheckpointMismatchError: There are several, but none for this stage.
    """
    if len(values) == 1:
        return values[0]
    if stage >= len(values):
        raise CheckpointMismatchError(
            f"windows: got {len(values)}, {list(values)}, expected one, or one for each stage of the checkpoint"
        )
    return values[stage]


def _buffers(
    ours: Mapping[str, Tensor],
    target: Scheme,
    windows: Sequence[int] | None,
    pretrained_windows: Sequence[int] | None,
) -> dict[str, Tensor]:
    """Buffers by our names that files of a scheme hold, and this checkpoint does not."""
    made = {}
    blocks = {key.rpartition("attn.")[0]: key for key in ours if key.endswith(".attn.qkv.weight")}
    for block, key in blocks.items():
        bias = f"{block}attn.bias."
        wanted = [
            name
            for name in ("index", "relative_coords_table")
            if bias + name not in ours and find_rule(bias + name, reverse(target.rules))
        ]
        if not wanted:
            continue
        table = ours.get(bias + "relative_position_bias_table")
        stage = int(key.split(".")[1])
        if table is not None:
            window = tuple((side + 1) // 2 for side in table.shape[:2])
        elif windows:
            window = (of_stage(windows, stage),) * 2
        else:
            raise CheckpointMismatchError(
                f"{target.name} files hold buffers that depend on the window, which the parameters of this checkpoint "
                f"do not tell; give it: --window-size 8, or one per stage, and --pretrained-window-size if it differs"
            )
        if "index" in wanted:
            made[bias + "index"] = relative_position_index(window)  # [N, N]
        if "relative_coords_table" in wanted:
            side = of_stage(pretrained_windows or [0], stage)
            made[bias + "relative_coords_table"] = log_spaced_offsets(window, (side, side) if side else window)
    return made


def _is_in_numpy(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except (TypeError, RuntimeError):
        return False
    return True


def save(state: Mapping[str, Tensor], path: Path, wrapper: str | None = None, extra: Mapping | None = None) -> None:
    """Write tensors to a file, whole or not at all.

    Args:
        state: Tensors by name.
        path: Its suffix is one of `SUFFIXES`; all but the first and the last mean a torch file.
        wrapper: Entry of a torch file that holds the tensors; None for the file itself.
        extra: Further entries of a wrapped torch file.

    Raises:
        ValueError: Another suffix, or numbers of a type that numpy does not have in an ``.npz`` archive.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"got {path.name}, expected a name ending in one of {', '.join(SUFFIXES)}")
    # Own memory each: a part of a tensor would be saved with the whole of it.
    state = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    lacking = {value.dtype for value in state.values() if not _is_in_numpy(value.dtype)}
    if path.suffix == ".npz" and lacking:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in lacking))
        raise ValueError(f"{path.name}: got tensors of {names}, which numpy does not have; write .safetensors")
    with atomic_write(path) as scratch:
        if path.suffix == ".safetensors":
            save_file(state, scratch)
        elif path.suffix == ".npz":
            np.savez(scratch, **{key: value.cpu().numpy() for key, value in state.items()})
        else:
            torch.save({wrapper: state, **(extra or {})} if wrapper else state, scratch)
