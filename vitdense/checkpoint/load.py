"""Load exactly or raise: read, detect the scheme, rename, resize, check, and only then change the model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitdense.checkpoint.detect import WRAPPERS, Match, detect, entries, unwrap
from vitdense.checkpoint.errors import CheckpointMismatchError, naming_option
from vitdense.checkpoint.fill import fill
from vitdense.checkpoint.fit import fit, fresh_pattern, match_exactly, same_kind, with_channels
from vitdense.checkpoint.read import parts_in_timm, read
from vitdense.checkpoint.rename import rename
from vitdense.checkpoint.schemes import CLASSIFIER, NAMING, PERIODS, REBUILT, TOKENS
from vitdense.checkpoint.whole_models import (
    DETECTOR,
    DIFFERENCES,
    is_whole_model,
    split_parts,
    trained_classes,
    with_named_outputs,
)
from vitdense.errors import OptionError

NEAR_ZERO = 0.1  # largest mean of a norm's weights in a file of differences


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


def _stem_weight(model: nn.Module) -> str:
    stem = next(part for module in model.stem_modules() for part in module.modules() if isinstance(part, nn.Conv2d))
    return next(f"{name}.weight" for name, module in model.named_modules() if module is stem)


def _transfer(
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
    state = _transfer(match, model, report, resize)
    if not keep_classifier:
        report.classifier.clear()
    given = (*state, *report.ignored)
    # Either all keys of a pattern are missing, or none.
    patterns = NAMING[model.family].may_be_missing
    missing = [pattern for pattern in patterns if not any(re.fullmatch(pattern, key) for key in given)]
    advice = f"It is {source} with {report.scheme} names; check the arch and the options of the model. "
    stem = _stem_weight(model) if hasattr(model, "stem_modules") else None  # a head has none
    if stem in state and state[stem].ndim == 4 and same_kind(state[stem], targets[stem]):
        theirs, ours = state[stem].shape[1], targets[stem].shape[1]
        if channels is not None:
            _spread(state, stem, channels, ours, report)
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


def _spread(state: dict, stem: str, channels: str | Sequence[int], number: int, report: LoadReport) -> None:
    report.channels = f"{stem}: {state[stem].shape[1]} -> {number} input channels by channels={channels!r}"
    state[stem] = with_channels(state[stem], channels, number)


def _part_of(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor of the file for the model's tensor `like`: after `fully_shard`, the part of this process."""
    if not hasattr(like, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor  # imported here: some builds of torch lack it

    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def fit_whole(
    model: nn.Module,
    checkpoint: Mapping,
    fresh: Sequence[str] = (),
    source: str = "state dict",
    base: str | Path | None = None,
    channels: str | Sequence[int] | None = None,
) -> tuple[dict[str, Tensor], LoadReport]:
    """The tensors of a checkpoint that fill a whole detector or segmentor.

    Backbones of this project, and heads of EoMT, PMT and RF-DETR, may have any known naming scheme. Other parts must
    have the names of the model, as in checkpoints of mmdet and mmseg; or detectron2's names, in a detector with a
    simple feature pyramid.

    Args:
        model: The detector or segmentor. With a `base`, its trunk is changed.
        source: Origin of the checkpoint, for the report.
        base: Weights of the trunk, a file or a name of the model table. They are for a checkpoint without a trunk
            (PMT), or with differences to these weights, which are added (EoMT on DINOv3, as published).
        channels: As of `load_pretrained`, for a backbone with other image channels than the file's.

    Raises:
        CheckpointMismatchError: The checkpoint does not fit exactly, needs a `base`, or has no use for it.
    """
    state = unwrap(checkpoint)
    if any(key.startswith("backbone.simfp_") for key in state):
        state = rename(state, DETECTOR)
    targets = model.state_dict()
    report = LoadReport(source, "own")
    backbones = ["backbone."]
    trunk = None  # match in the file; None for our names
    is_foreign = is_whole_model(state)
    if is_foreign:
        state, report.classes = with_named_outputs(state, trained_classes(checkpoint))
        state = split_parts(state, "decode_head." if hasattr(model, "decode_head") else "panoptic_head.")
    if is_foreign or base is not None:
        state, trunk = _with_base(model, state, base, source, report)
    for name, module in model.named_modules():
        start = f"{name}." if name else ""
        is_inner = start.startswith(tuple(backbones[1:]))  # the trunk of a ViT-Adapter
        if not hasattr(module, "family") or is_inner or not any(key.startswith(start) for key in state):
            continue
        if hasattr(module, "stem_modules"):
            backbones.append(start)
        match = trunk if start == "backbone." and trunk else detect(state, (module.family,), prefix=start)
        report.scheme = match.scheme.name if report.scheme == "own" else report.scheme
        part = LoadReport(source, report.scheme)
        ours = _transfer(match, module, part, is_whole=True)
        stem = _stem_weight(module) if channels is not None and hasattr(module, "stem_modules") else ""
        if stem in ours and ours[stem].shape[1] != module.in_channels:
            _spread(ours, stem, channels, module.in_channels, report)
        state = {key: value for key, value in state.items() if not key.startswith(start)}
        state |= {start + key: value for key, value in ours.items()}
        report.resized |= {start + key: shapes for key, shapes in part.resized.items()}
        report.ignored += [start + key for key in part.ignored]
        report.queries = report.queries or part.queries

    def advise(refused: set[str], excused: set[str]) -> str:
        if any(key.startswith(tuple(backbones)) for key in refused):
            return f"The backbone of {source} has another arch or other options: give the config it was trained with. "
        pattern = fresh_pattern(refused | excused, (targets.keys() | state.keys()) - refused - excused)
        if pattern is None:
            return f"Give the config that {source} was trained with. "
        return (
            f"To train these parts anew, for other classes: vitdense train --fresh '{pattern}' (in a config: "
            f"default_hooks=dict(exact_load=dict(fresh=[r'{pattern}']))). Otherwise, give the config that {source} was "
            f"trained with. "
        )

    for pattern in fresh:
        if not any(re.fullmatch(pattern, key) for key in (*targets, *state)):
            raise OptionError(f"fresh: {pattern!r} matches no parameter of the model or of {source}")
    formulas = {key: x for key, x in targets.items() if is_foreign and re.fullmatch(rf".+\.{PERIODS}", key)}
    state = match_exactly(targets, formulas | state, fresh, advise)  # foreign files lack the formulas
    report.count(targets, state)
    return state, report


def _with_base(
    model: nn.Module, state: dict[str, Tensor], base: str | Path | None, source: str, report: LoadReport
) -> tuple[dict[str, Tensor], Match | None]:
    """A mask transformer's state dict with a whole trunk: the file's own, `base`, or the sum of both.

    Also returned is the match of the file's own trunk; None for the others, which have our names.
    """
    trunk = model.backbone
    own = {key: value for key, value in state.items() if key.startswith("backbone.")}
    match = detect(own, (trunk.family,), prefix="backbone.") if own else None
    if match is not None and not _are_differences(match, source):
        if base is not None:
            raise CheckpointMismatchError(f"base: got {base}, but {source} has the whole trunk; leave it out")
        return state, match
    has = "differences to the weights of the trunk" if own else "no trunk"
    if base is None:
        raise CheckpointMismatchError(
            f"{source} has {has}: give the trunk's weights as base, a file or a name, in a "
            f"config default_hooks=dict(exact_load=dict(base=...))"
        )
    with naming_option("default_hooks.exact_load.base"):
        of_base = load_pretrained(trunk, base)
    values = {f"backbone.{key}": value for key, value in trunk.state_dict().items()}
    differences = {} if match is None else _transfer(match, trunk, LoadReport(source, match.scheme.name), is_whole=True)
    for key, value in differences.items():
        values[f"backbone.{key}"] = values[f"backbone.{key}"] + value
    report.scheme = f"{match.scheme.name if match else 'the head alone'}, with the trunk of {of_base.source}"
    return values | {key: value for key, value in state.items() if key not in own}, None


def _are_differences(trunk: Match, source: str) -> bool:
    """Whether a trunk with the names of EoMT's authors has differences to the weights of DINOv3.

    Published files have differences, checkpoints of a training have weights. In norms, weights are near 1 and
    differences near 0; other values are refused.
    """
    if trunk.scheme.name != DIFFERENCES:
        return False
    sizes = sorted(x.float().abs().mean().item() for key, x in trunk.ours.items() if re.search(r"norm\d*\.weight", key))
    if sizes and sizes[-1] < NEAR_ZERO:
        return True
    if not sizes or sizes[0] < NEAR_ZERO or not 0.5 < sizes[len(sizes) // 2] < 2:
        found = f"from {sizes[0]:.3g} to {sizes[-1]:.3g}" if sizes else "missing"
        raise CheckpointMismatchError(
            f"{source}: the trunk's norms are {found}, expected near 1, of weights, or near 0, of differences to those "
            f"of DINOv3; give the file as its training or its authors saved it"
        )
    return False


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
    ours = _transfer(match, model, LoadReport("state dict", match.scheme.name), is_whole=True)
    for key in part:
        del state[key]
    state.update({prefix + key: value for key, value in ours.items()})
