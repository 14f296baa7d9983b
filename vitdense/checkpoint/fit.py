"""Fit tensors of a checkpoint to a model: resize, change the channels of the stem, compare, report mismatches."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from vitdense.checkpoint.detect import is_finite
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.errors import OptionError
from vitdense.families import is_whole as is_whole_number
from vitdense.layers.resize import resize_bias_table, resize_grid, resize_patch, resize_relative_position

NAMED = 10  # tensors in a message
LONGEST = 200  # most characters of a suggested pattern


def fit(key: str, value: Tensor, target: Tensor, rule: str = "bicubic") -> Tensor:
    """A tensor of the checkpoint for the model. A position table of another resolution is resized.

    `key` is our name. For `rule` see `vitdense.layers.resize`; decomposed tables are always resized linearly.
    """
    if not value.numel() or not same_kind(value, target):
        return value
    if key == "patch_embed.proj.weight" and rule == "timm" and value.ndim == target.ndim == 4:
        return value if value.shape[2:] == target.shape[2:] else resize_patch(value, tuple(target.shape[2:]))
    if value.ndim != target.ndim or value.shape[-1:] != target.shape[-1:]:
        return value
    if key.endswith(".relative_position_bias_table"):
        return resize_bias_table(value, tuple((side + 1) // 2 for side in target.shape[:2]), rule)
    if "absolute_pos_embed." in key:  # a grid, or the rows or columns of one
        return resize_grid(value, tuple(target.shape[1:3]), rule)
    if key.endswith((".bias.rel_pos_h", ".bias.rel_pos_w")):
        return resize_relative_position(value, target.shape[0])
    return value


def with_channels(weight: Tensor, channels: str | Sequence[int], number: int) -> Tensor:
    """The weight of a stem's convolution, ``[D, F, h, w]``, for images of `number` channels C: ``[D, C, h, w]``.

    Args:
        weight: Weight in the file, for F channels, mostly R, G and B.
        channels: ``'mean'``: ``new[:, c] = weight.sum(1) / C``, which keeps the sum over all channels. ``'repeat'``:
            ``new[:, c] = weight[:, c % F] * F / C``. A list, one entry for each channel: ``new[:, c] = weight[:,
            channels[c]]``.
        number: C.
    """
    given = weight.shape[1]
    if channels == "mean":
        return weight.float().sum(1, keepdim=True).expand(-1, number, -1, -1) / number  # [D, C, h, w]
    if channels == "repeat":
        return weight.float()[:, [c % given for c in range(number)]] * (given / number)  # [D, C, h, w]
    is_list = isinstance(channels, (list, tuple)) and len(channels) == number
    if not is_list or not all(is_whole_number(c, 0) and c < given for c in channels):
        raise OptionError(
            f"channels: got {channels!r}, expected 'mean', 'repeat', or for each of the {number} channels of the model "
            f"one of the file, 0 to {given - 1}"
        )
    return weight[:, list(channels)]  # [D, C, h, w]


def match_exactly(
    targets: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    fresh: Sequence[str] = (),
    advise: Callable[[set[str], set[str]], str] = lambda refused, excused: "",
) -> dict[str, Tensor]:
    """The tensors of a checkpoint's state dict for a model with the state dict `targets`.

    Args:
        fresh: Regular expressions of names to leave out, whether they would fit or not.
        advise: Makes advice for the error message from the names of refused and of excused mismatches.

    Raises:
        CheckpointMismatchError: Any other key is missing or unexpected, or has another size or dtype, or NaN or
            infinity. The message counts them, and lists some.
    """
    both = [key for key in state if key in targets]
    mismatches = {
        "missing keys": [key for key in targets if key not in state],
        "unexpected keys": [key for key in state if key not in targets],
        "size mismatch": [key for key in both if targets[key].shape != state[key].shape],
        "dtype mismatch": [key for key in both if not same_kind(targets[key], state[key])],
        "NaN or infinity": [
            key
            for key in both
            if same_kind(targets[key], state[key]) and not is_finite(state[key].to(targets[key].dtype))
        ],
    }
    found = {key for keys in mismatches.values() for key in keys}
    left_out = {key for key in (*targets, *state) if any(re.fullmatch(p, key) for p in fresh)}
    if refused := found - left_out:
        kinds = {what: [key for key in keys if key in refused] for what, keys in mismatches.items()}
        kinds = {what: keys for what, keys in kinds.items() if keys}
        sizes = {key: f" {tuple(state[key].shape)}, expected {tuple(targets[key].shape)}" for key in both}
        named = NAMED // len(kinds)  # of each kind
        listed = "; ".join(
            f"{what} ({len(keys)}): "
            + ", ".join(key + sizes[key] if what == "size mismatch" else key for key in keys[:named])
            + (", ..." if len(keys) > named else "")
            for what, keys in kinds.items()
        )
        advice = advise(refused, found & left_out)
        if any(".lora." in key for key in refused):
            advice = (
                "Keys with .lora. are low-rank updates: for a model with finetune='lora' and a file without them, "
                "vitdense train --fresh '.+\\.lora\\..+'; for the contrary, vitdense convert --merge-lora. "
            )
        raise CheckpointMismatchError(f"the checkpoint does not fit the model exactly. {advice}{listed}")
    return {key: value for key, value in state.items() if key not in left_out}


def same_kind(a: Tensor, b: Tensor) -> bool:
    """Whether both have real numbers, or both complex ones, bools or integers."""
    kinds = [(x.is_floating_point(), x.is_complex(), x.dtype == torch.bool) for x in (a, b)]
    return kinds[0] == kinds[1]


def fresh_pattern(keys: Collection[str], others: Collection[str]) -> str | None:
    """A regular expression that fully matches the parameters `keys` and none of `others`; None if it would be long.

    It has names of layers, such as ``(.+\\.)?(fc_cls|fc_reg)\\..*``, or key by key.
    """
    # Names without the numbers of a cascade's layers.
    layers = {[part for part in key.split(".") if not part.isdecimal()][-2:][0] for key in keys}
    for pattern in (rf"(.+\.)?({'|'.join(sorted(layers))})\..*", "|".join(sorted(map(re.escape, keys)))):
        fits = re.compile(pattern).fullmatch
        if len(pattern) <= LONGEST and all(map(fits, keys)) and not any(map(fits, others)):
            return pattern
    return None
