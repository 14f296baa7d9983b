"""Load exactly or raise: read, detect the scheme, rename, resize, check, and only then touch the model."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from vitdense.layers.bias import window_of_offsets
from vitdense.layers.resize import resize_bias_table, resize_grid, resize_relative_position
from vitdense.weights.detect import LISTED, Found, detect, unwrap
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.read import read
from vitdense.weights.sizes import advice
from vitdense.weights.sources import CLASSIFIER, FRESH, OUTPUT_NORMS, PRETRAINING, REBUILT, TOKENS

# What the checkpoint of a backbone alone may hold that the model does not; that of a whole model holds what it needs.
IGNORED_FOR_BACKBONE = (CLASSIFIER, PRETRAINING, REBUILT, OUTPUT_NORMS)
IGNORED_FOR_WHOLE_MODEL = (REBUILT,)


@dataclass
class LoadReport:
    """What a load did: names by what became of them, and the share of the model's parameters that was filled.

    Attributes:
        source: File or address.
        scheme: Naming scheme of its backbone.
        loaded: Tensors that were taken over.
        resized: Those of them that were resized: old and new shape.
        dropped: Tensors of the checkpoint that were left out on purpose, by our names.
        fresh: Tensors of the model that keep their initial values on purpose.
        share: Elements filled over all elements of the model's state dict.
        classifier: Of what was dropped, the tensors of the classifier by our names (``norm.*``, ``fc_norm.*``,
            ``pre_logits.*``, ``head.*``, ``head_dist.*``), where they were to be kept.
    """

    source: str
    scheme: str
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, tuple[tuple, tuple]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    share: float = 0.0
    classifier: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return (
            f"{self.source} ({self.scheme} names): {len(self.loaded)} tensors loaded, {len(self.resized)} of them "
            f"resized, {len(self.dropped)} dropped on purpose, {len(self.fresh)} fresh; "
            f"{100 * self.share:.2f} % of the parameters filled"
        )

    def details(self) -> str:
        """The line and, below it, every name by what became of it."""
        resized = [f"{key}: {list(old)} -> {list(new)}" for key, (old, new) in self.resized.items()]
        lists = {"resized": resized, "dropped": self.dropped, "fresh": self.fresh, "loaded": self.loaded}
        return "\n".join([str(self), *(f"  {what} {line}" for what, lines in lists.items() for line in lines)])


def fit(key: str, value: Tensor, target: Tensor, rule: str = "bicubic") -> Tensor:
    """`value` at the resolution of `target`, where it differs in nothing else: position tables of all kinds.

    Args:
        key: Our name of the tensor.
        value: From the checkpoint.
        target: The model's tensor of that name.
        rule: See `vitdense.layers.resize`. Decomposed tables are resized linearly whatever it says, as all do.
    """
    if value.ndim != target.ndim or value.shape[-1:] != target.shape[-1:]:
        return value
    if key.endswith(".relative_position_bias_table"):
        return resize_bias_table(value, tuple((side + 1) // 2 for side in target.shape[:2]), rule)
    if key == "absolute_pos_embed.table":
        return resize_grid(value, tuple(target.shape[1:3]), rule)
    if key.endswith((".bias.rel_pos_h", ".bias.rel_pos_w")):
        return resize_relative_position(value, target.shape[0])
    return value


def match_exactly(
    targets: Mapping[str, Tensor], state: Mapping[str, Tensor], fresh: Sequence[str] = (), hint: str = ""
) -> dict[str, Tensor]:
    """The tensors of a state dict that fill a model of the same names.

    Args:
        targets: The model's state dict.
        state: Tensors by name.
        fresh: Regular expressions of names that may be missing, left over or of another shape.
        hint: What to do about it: ends the message.

    Raises:
        CheckpointMismatchError: Anything else is, or is not finite; all are listed.
    """
    faults = {
        "missing": [key for key in targets if key not in state],
        "left over": [key for key in state if key not in targets],
        "of another shape": [key for key in targets if key in state and targets[key].shape != state[key].shape],
        "of another type": [
            key for key, x in state.items() if key in targets and _is_real(targets[key]) != _is_real(x)
        ],
        "with NaN or infinity": [
            key for key, x in state.items() if key in targets and not _is_finite(x.to(targets[key].dtype))
        ],
    }
    excused = {key for keys in faults.values() for key in keys if any(re.fullmatch(p, key) for p in fresh)}
    faults = {what: [key for key in keys if key not in excused] for what, keys in faults.items()}
    if any(faults.values()):

        def describe(key: str) -> str:
            if key not in faults["of another shape"]:
                return key
            return f"{key} {tuple(state[key].shape)}, expected {tuple(targets[key].shape)}"

        listed = "; ".join(
            f"{len(keys)} {what}: {', '.join(map(describe, keys[:LISTED]))}" for what, keys in faults.items() if keys
        )
        raise CheckpointMismatchError(f"the checkpoint does not fit the model exactly: {listed}. {hint}".rstrip())
    return {key: value for key, value in state.items() if key not in excused}


def _is_real(x: Tensor) -> bool:
    return x.dtype.is_floating_point


def _is_finite(x: Tensor) -> bool:
    if not _is_real(x) or x.numel() == 0:
        return True
    low, high = x.aminmax()  # one pass, nothing allocated
    return math.isfinite(low.item() + high.item())


def _transfer(
    found: Found,
    model: nn.Module,
    targets: Mapping[str, Tensor],
    report: LoadReport,
    rule: str = "bicubic",
    keep_classifier: bool = False,
    beside: Sequence[str] = IGNORED_FOR_BACKBONE,
) -> dict[str, Tensor]:
    """The backbone of a checkpoint by our names at the model's resolution, without what it may hold `beside` it."""
    renamed = found.ours()
    _check_pretraining_windows(model, renamed)
    _check_grid(found, renamed, targets)
    _check_heads(found, model)
    left_out = re.compile("|".join((*beside, *_unused_tokens(renamed, targets, beside))))
    state = {}
    for key, value in renamed.items():
        if key in targets:
            state[key] = fit(key, value, targets[key], rule)
            if state[key].shape != value.shape:
                report.resized[key] = tuple(value.shape), tuple(state[key].shape)
        elif left_out.fullmatch(key):
            report.dropped.append(key)
            if keep_classifier and re.fullmatch(CLASSIFIER, key):
                report.classifier[key] = value
        else:
            state[key] = value
    return state


def _unused_tokens(
    renamed: Mapping[str, Tensor], targets: Mapping[str, Tensor], beside: Sequence[str]
) -> tuple[str, ...]:
    """Patterns of the tokens of a checkpoint that may be left out.

    A model with tokens needs just those of the checkpoint: without one of them, its features are others. A backbone
    without may start from one that was pretrained with them. A whole model without was trained without: only
    detectron2's ViTDet keeps the position of a token that it does not have.
    """
    if any(re.fullmatch(TOKENS, key) for key in targets):
        return ()
    if CLASSIFIER in beside:
        return (TOKENS,)
    return () if "tokens.cls_token" in renamed else (r"tokens\.cls_position",)


def _check_heads(found: Found, model: nn.Module) -> None:
    """Only Google's kernels tell the heads, which change no shape of ours: where they do, they must be the model's."""
    modules = dict(model.named_modules())
    for name, told in found.heads().items():
        if name in modules and told != {modules[name].num_heads}:
            raise CheckpointMismatchError(
                f"{name} has {' or '.join(map(str, sorted(told)))} heads in the checkpoint, the model "
                f"{modules[name].num_heads}: give the arch that fits, its num_heads"
            )


def _check_grid(found: Found, renamed: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Flat positions are read as those of a square and of as many tokens as are over; where they may as well be those
    of the model's own grid, neither is guessed: 144 of them are of 12x12 patches, resized to 8x18, or of 8x18 as they
    are; 196 of 14x14 patches, or of 13x15 and the class token."""
    key = "absolute_pos_embed.table"
    flat = found.flat_positions()
    if key not in renamed or key not in targets or flat is None:
        return
    rows, tokens = flat
    (h, w), (height, width) = renamed[key].shape[1:3], targets[key].shape[1:3]
    if (h, w) != (height, width) and rows - height * width in tokens:

        def and_tokens(n: int) -> str:
            return f" and {n} token{'s' * (n > 1)}" if n else ""

        raise CheckpointMismatchError(
            f"the {rows} flat positions of the checkpoint are of a grid of {h}x{w}{and_tokens(rows - h * w)}, or of "
            f"{height}x{width}{and_tokens(rows - height * width)} as the model's, and do not tell which: set "
            f"pretrain_img_size to the square image that it was trained on (other images are as good: positions are "
            f"resized as the image comes); or if it was {height}x{width}, save them under our name {key}, as "
            f"[1, {height}, {width}, C], among the others by our names (tools/convert.py)"
        )


def _check_pretraining_windows(model: nn.Module, renamed: Mapping[str, Tensor]) -> None:
    """Swin V2's parameters fit any windows; where a checkpoint tells those it was trained with, they must be ours."""
    for key, table in renamed.items():
        if not key.endswith(".relative_coords_table"):
            continue
        theirs, ours = window_of_offsets(table), window_of_offsets(model.get_buffer(key))
        if table.shape[1] > 1 and theirs != ours:
            raise CheckpointMismatchError(
                f"the checkpoint was pretrained with windows of {theirs[0]}x{theirs[1]} in stage {key.split('.')[1]}, "
                f"the model expects {ours[0]}x{ours[1]} there: set pretrained_window_sizes, one for each stage, such "
                f"as (16, 16, 16, 8) for window 16 trained at 256 pixels"
            )


def _finish(report: LoadReport, targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    report.loaded = [key for key in targets if key in state]
    report.fresh = [key for key in targets if key not in state]
    total = sum(value.numel() for value in targets.values())
    report.share = sum(targets[key].numel() for key in report.loaded) / total


def load_pretrained(
    model: nn.Module,
    checkpoint: str | Path | Mapping,
    prefix: str | None = None,
    scheme: str | None = None,
    resize: str = "bicubic",
    sha256: str | None = None,
    allow_pickle: bool = False,
    allow: Sequence = (),
    keep_classifier: bool = False,
) -> LoadReport:
    """Fill a backbone from a checkpoint of any known naming scheme, exactly.

    Args:
        model: Has a `family` of `vitdense.weights.sources.SCHEMES`. Changed only when everything fits.
        checkpoint: A path, an address, a short name, or what such a file holds.
        prefix: See `detect`.
        scheme: See `detect`.
        resize: Rule for bias tables and absolute positions of another resolution; see `vitdense.layers.resize`.
        sha256: See `read`.
        allow_pickle: See `read`.
        allow: See `read`.
        keep_classifier: Keep the dropped tensors of the classifier in the report.

    Returns:
        What was loaded, resized, dropped and left fresh.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointMismatchError: A key is unknown, missing, left over, of another shape or not finite; or the checkpoint
            tells heads, a grid or windows of pretraining that are not the model's; or has a head that cannot be kept.
    """
    if isinstance(checkpoint, Mapping):
        source = "state dict"
    else:
        source = str(checkpoint)
        checkpoint = read(checkpoint, allow, sha256=sha256, allow_pickle=allow_pickle)
    found = detect(unwrap(checkpoint), (model.family,), prefix, scheme)
    if keep_classifier and (unknown := [key for key in found.rest if key.startswith("head")]):
        raise CheckpointMismatchError(
            f"keep_classifier: {source} has {', '.join(unknown[:LISTED])}, which may be of a classifier, and which "
            f"the {found.scheme.name} scheme does not know; leave keep_classifier out, or name them as that scheme does"
        )
    report = LoadReport(source, found.scheme.name)
    targets = model.state_dict()
    state = _transfer(found, model, targets, report, resize, keep_classifier)
    # A classification checkpoint has no output norm at all; one that has some must have all that are needed.
    given = (*state, *report.dropped)
    fresh = [
        pattern
        for pattern in FRESH.get(model.family, (OUTPUT_NORMS,))
        if not any(re.fullmatch(pattern, key) for key in given)
    ]
    try:
        state = match_exactly(targets, state, fresh)
    except CheckpointMismatchError as error:
        hint = f"It is {source} under {found.scheme.name} names.{advice(model.family, state, targets)}"
        raise CheckpointMismatchError(f"{error} {hint}") from None
    _finish(report, targets, state)
    model.load_state_dict({**targets, **state}, strict=True)
    return report


def fit_whole(
    model: nn.Module,
    checkpoint: Mapping,
    fresh: Sequence[str] = (),
    source: str = "state dict",
) -> tuple[dict[str, Tensor], LoadReport]:
    """The tensors of a checkpoint that fill a whole detector or segmentor; the model is not changed.

    Its backbones, if they are this project's, may have any known naming scheme; the rest must have the model's names,
    as mmdet's and mmseg's own checkpoints do.

    Args:
        model: The detector or segmentor.
        checkpoint: What the file holds.
        fresh: See `match_exactly`.
        source: Where it is from, for the report.

    Raises:
        CheckpointMismatchError: The checkpoint does not fit exactly.
    """
    state = unwrap(checkpoint)
    targets = model.state_dict()
    report = LoadReport(source, "own")
    for name, module in model.named_modules():
        start = f"{name}." if name else ""
        if not hasattr(module, "family") or not any(key.startswith(start) for key in state):
            continue
        found = detect(state, (module.family,), prefix=start)
        report.scheme = found.scheme.name
        part = LoadReport(source, report.scheme)
        ours = _transfer(found, module, module.state_dict(), part, beside=IGNORED_FOR_WHOLE_MODEL)
        state = {**found.rest, **{start + key: value for key, value in ours.items()}}
        report.resized |= {start + key: shapes for key, shapes in part.resized.items()}
        report.dropped += [start + key for key in part.dropped]
    state = match_exactly(
        targets,
        state,
        fresh,
        "Give the config it was trained with; to fine-tune, name what may stay fresh or be left out: "
        "custom_hooks=[dict(type='vitdense.ExactLoadHook', fresh=[...])]",
    )
    _finish(report, targets, state)
    return state, report


def remap_keys_in_place(model: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
    """Give the part of a state dict that is a backbone's our names, in place, if it has another project's.

    Args:
        model: The backbone; not changed.
        state: What is about to be loaded, whatever else it holds.
        prefix: Of the backbone's keys.

    Raises:
        CheckpointMismatchError: The part has neither our names nor those of a known scheme.
    """
    targets = model.state_dict()
    part = {key: value for key, value in state.items() if key.startswith(prefix)}
    if all(key.removeprefix(prefix) in targets for key in part):
        return
    found = detect(part, (model.family,), prefix)
    if found.scheme.name == "vitdense":
        return
    report = LoadReport("state dict", found.scheme.name)
    ours = _transfer(found, model, targets, report, beside=IGNORED_FOR_WHOLE_MODEL)
    for key in part:
        del state[key]
    state.update({prefix + key: value for key, value in ours.items()})
