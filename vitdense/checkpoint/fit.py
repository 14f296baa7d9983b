"""Fit tensors of a checkpoint to a model and fill it: resize, spread over channels, compare, report."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitdense.checkpoint.detect import Match
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.schemes import CLASSIFIER, NAMING, REBUILT, TOKENS
from vitdense.errors import OptionError
from vitdense.families import is_whole as is_whole_number
from vitdense.layers.buffers import FormulaBuffers
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


def is_finite(x: Tensor) -> bool:
    """Whether a tensor has neither NaN nor infinity."""
    if not x.is_floating_point() or x.numel() == 0:
        return True
    low, high = x.aminmax()  # one pass, nothing allocated
    return math.isfinite(low.item() + high.item())


@dataclass
class LoadReport:
    """What happened to every tensor.

    Attributes:
        source: File or address.
        scheme: Naming scheme of the backbone in it.
        loaded: Names of the model's tensors that were loaded.
        resized: Name of a resized tensor -> old and new shape.
        ignored: Tensors of the checkpoint that were ignored (allow-listed), by our names.
        kept_at_init: Tensors of the model that are not in the checkpoint and may be missing.
        share: Elements loaded / elements of the model's state dict.
        channels: How the stem was changed for images with other channels; empty if it was not.
        others: Other entries of the file with weights, which were not loaded, such as an average in ``model_ema``.
        classes: Which outputs have which classes, if the file has its own numbers; else empty.
        queries: How queries were repeated or left out, if the model has another number of them; else empty.
        classifier: With `keep_classifier`, the ignored tensors of the classifier, by our names such as ``head.weight``.
    """

    source: str
    scheme: str
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, tuple[tuple, tuple]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    kept_at_init: list[str] = field(default_factory=list)
    share: float = 0.0
    channels: str = ""
    others: str = ""
    classes: str = ""
    queries: str = ""
    classifier: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def count(self, targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Fill in which of the model's tensors are loaded."""
        self.loaded = [key for key in targets if key in state]
        self.kept_at_init = [key for key in targets if key not in state]
        self.share = sum(targets[key].numel() for key in self.loaded) / sum(x.numel() for x in targets.values())

    def __str__(self) -> str:
        return (
            f"{self.source} ({self.scheme} names): {len(self.loaded)} tensors loaded ({len(self.resized)} resized), "
            f"{len(self.ignored)} ignored, {len(self.kept_at_init)} kept at initialisation; "
            f"{100 * self.share:.2f} % of the parameters loaded"
            + "".join(f"; {what}" for what in (self.channels, self.others, self.classes, self.queries) if what)
        )

    def details(self) -> str:
        """The line and, below it, what happened to every tensor."""
        resized = [f"{key}: {list(old)} -> {list(new)}" for key, (old, new) in self.resized.items()]
        kept = self.kept_at_init
        lists = {"resized": resized, "ignored": self.ignored, "kept at initialisation": kept, "loaded": self.loaded}
        return "\n".join([str(self), *(f"  {what} {line}" for what, lines in lists.items() for line in lines)])


def transfer(
    match: Match, model: nn.Module, report: LoadReport, resize: str = "bicubic", is_whole: bool = False
) -> dict[str, Tensor]:
    """The backbone with our names, at the resolution of the model, without `_ignored` keys."""
    renamed, targets = match.ours, model.state_dict()
    if check := NAMING[match.family].check:
        check(model, renamed)
    ignored = re.compile("|".join(_ignored(match.family, renamed, targets, is_whole)))
    fit_own, is_own = NAMING[match.family].fit, match.scheme.name == "vitdense"
    state = {}
    for key, value in renamed.items():
        if key in targets:
            fitted, said = fit_own(key, value, model, is_own, resize) if fit_own else (value, "")
            report.queries = report.queries or said
            state[key] = fit(key, fitted, targets[key], resize)
            if state[key].shape != value.shape:
                if key == "absolute_pos_embed.table" and resize == "bicubic":
                    _refuse_other_positions(model, value)
                report.resized[key] = tuple(value.shape), tuple(state[key].shape)
        elif ignored.fullmatch(key):
            report.ignored.append(key)
            if re.fullmatch(CLASSIFIER, key):
                report.classifier[key] = value
        else:
            state[key] = value
    return state


def _ignored(
    family: str, renamed: Mapping[str, Tensor], targets: Mapping[str, Tensor], is_whole: bool
) -> tuple[str, ...]:
    """Regular expressions of keys that may be ignored; in a whole model (`is_whole`) only buffers.

    A backbone without tokens may start from one with tokens; one with tokens needs the same tokens in the file.
    """
    has_tokens = any(re.fullmatch(TOKENS, key) for key in targets)
    if not is_whole:
        return NAMING[family].ignored if has_tokens else (*NAMING[family].ignored, TOKENS)
    # detectron2's ViTDet and ViT-Adapter keep the position of a class token, although they have none.
    is_unused = not has_tokens and "tokens.cls_token" not in renamed
    return (REBUILT, r"(trunk\.)?tokens\.cls_position") if is_unused else (REBUILT,)


def _refuse_other_positions(model: nn.Module, table: Tensor) -> None:
    """Refuse positions of another size for a model with a `position_rule`, such as DINOv2.

    It resizes them in every pass from the size of pretraining, so loading must not resize them.
    """
    if (rule := getattr(model.arch, "position_rule", "bicubic")) != "bicubic":
        size = tuple(side * model.arch.patch_size for side in table.shape[1:3])
        raise CheckpointMismatchError(
            f"the checkpoint has positions for images of {size[0]}x{size[1]} pixels, and by position_rule={rule!r} the "
            f"model resizes them itself, in every pass: set pretrain_img_size={size}"
        )


def stem_weight(model: nn.Module) -> str:
    stem = next(part for module in model.stem_modules() for part in module.modules() if isinstance(part, nn.Conv2d))
    return next(f"{name}.weight" for name, module in model.named_modules() if module is stem)


def spread(state: dict, stem: str, channels: str | Sequence[int], number: int, report: LoadReport) -> None:
    report.channels = f"{stem}: {state[stem].shape[1]} -> {number} input channels by channels={channels!r}"
    state[stem] = with_channels(state[stem], channels, number)


def fill(model: nn.Module, state: Mapping[str, Tensor], is_own: bool) -> None:
    """Fill a model with the tensors of a state dict, which must fit; other tensors stay.

    A model on the meta device that `takes_tensors`, see `Backbone`, gets the tensors themselves. Its other tensors are
    made on torch's default device, by `make_buffers` of `FormulaBuffers` and `reset_parameters`.

    Args:
        model: The model.
        state: From `match_exactly`.
        is_own: Whether the tensors were read from a file for this model. Others are copied, as are tensors that share
            memory.
    """
    ours = model.state_dict(keep_vars=True)
    if not (getattr(model, "takes_tensors", False) and any(x.is_meta for x in ours.values())):
        model.load_state_dict({**ours, **state})
        return
    device = torch.get_default_device()
    users = Counter(x.untyped_storage().data_ptr() for x in state.values())
    taken = {}
    for key, x in state.items():
        memory = x.untyped_storage()
        is_alone = is_own and users[memory.data_ptr()] == 1 and memory.nbytes() == x.nbytes
        taken[key] = x.detach().to(device, ours[key].dtype, copy=not is_alone).contiguous()
    model.load_state_dict(taken, strict=False, assign=True)
    for module in model.modules():
        _make_rest(module, device)


def _make_rest(module: nn.Module, device: torch.device) -> None:
    if isinstance(module, FormulaBuffers) and any(x.is_meta for x in module.buffers(recurse=False)):
        module.make_buffers(device)
    own = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
    if any(x.is_meta for x in own.values()):
        taken = {name: x.detach() for name, x in own.items() if not x.is_meta}
        module.to_empty(device=device, recurse=False)
        module.reset_parameters()
        for name, x in taken.items():
            getattr(module, name).data = x
