"""The base of all backbones: outputs, freezing, activation checkpointing, loading."""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from vitdense.checkpoint.errors import naming_option
from vitdense.checkpoint.fit import LoadReport
from vitdense.checkpoint.load import load_pretrained, remap_keys_in_place
from vitdense.errors import OptionError
from vitdense.families import OPEN_SOURCE, Model, arguments, is_number, is_whole, row_of
from vitdense.layers.blocks import LayerNorm
from vitdense.layers.lora import ATTENTION, LoRA, add_lora
from vitdense.module import Module

if TYPE_CHECKING:
    from timm.models import FeatureInfo

logger = logging.getLogger(__name__)

Finetune = str | Mapping | None
InitCfg = dict | Sequence[dict] | str | Path | None

# Regular expressions of parameters that `finetune` trains; others are frozen. "Three things" section 4 trains the
# attention and, in its code, position embeddings; as a control, the MLPs instead of the attention. Output norms train,
# because no classifier's checkpoint has them.
_ALWAYS = r"absolute_pos_embed\..+|tokens\..+_position|norm\d+\..+"
FINETUNE = {kind: rf".+\.{name}\d*\..+|{_ALWAYS}" for kind, name in (("attention", ATTENTION), ("mlp", "mlp"))}
FINETUNE["lora"] = r".+\.lora\.[AB]|norm\d+\..+"

# Options of `load_pretrained`, taken by `create` and `init_cfg`.
LOADING = tuple(name for name in inspect.signature(load_pretrained).parameters if name not in ("model", "checkpoint"))
_COUNT = (is_whole, "a whole number above 0")
_RATIO = (lambda x: is_number(x) and x > 0, "a number above 0")
# Argument of a constructor -> test of a value, and what is expected.
ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("in_channels", "patch_size", "kernel_size", "conv_inplane", "deform_num_heads"), _COUNT),
    **dict.fromkeys(("mlp_ratio", "deform_ratio"), _RATIO),
    "drop_path_rate": (lambda x: is_number(x) and 0 <= x < 1, "a number from 0 to below 1"),
    **dict.fromkeys(
        ("out_indices", "global_indices"),
        (lambda x: isinstance(x, Sequence | range) and all(is_whole(i, 0) for i in x), "a list of whole numbers"),
    ),
}


def check_arguments(kind: type, given: Mapping[str, Any]) -> None:
    """Check the arguments of a constructor by `ARGUMENTS`; an argument whose default is a bool must be a bool."""
    defaults = arguments(kind) or {}
    for name, value in given.items():
        default = defaults.get(name, inspect.Parameter.empty)
        is_right, expected = ARGUMENTS.get(name, (lambda x: True, ""))
        if isinstance(default, bool):
            is_right, expected = (lambda x: isinstance(x, bool)), "True or False"
        if not is_right(value) and not (value is None and default is None):
            raise OptionError(f"{name}: got {value!r}, expected {expected}")


def check_init_cfg(init_cfg: InitCfg) -> None:
    """Check an `init_cfg` that loads weights: it has only `type`, `checkpoint` and options of `load_pretrained`."""
    for cfg in init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg] if init_cfg else []:
        example = "expected such as dict(type='Pretrained', checkpoint='swin_tiny')"
        if not isinstance(cfg, Mapping) or "type" not in cfg:
            raise OptionError(f"init_cfg: got {cfg!r}, without type; {example}")
        if cfg["type"] != "Pretrained":
            continue
        for key in cfg.keys() - {"type", "checkpoint", *LOADING}:
            raise OptionError(f"init_cfg: got {key}={cfg[key]!r}, expected some of checkpoint, {', '.join(LOADING)}")
        if not isinstance(cfg.get("checkpoint"), (str, Path)):
            raise OptionError(f"init_cfg: got checkpoint={cfg.get('checkpoint')!r}; {example}")


def as_pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    """A tuple (h, w) from one int or (h, w); a ValueError for anything else, or a size below 1."""
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or not all(map(is_whole, pair)):
        raise OptionError(f"{name}: got {value!r}, expected a positive int or a pair (h, w) of them")
    return pair


def maybe_checkpoint(function: Callable[..., Tensor], *args: Any, with_cp: bool) -> Tensor:
    """Call `function`, recomputing its activations in the backward pass when `with_cp`.

    Non-reentrant, so that gradients flow also when no input needs one (a frozen stem) and under DDP.
    """
    return checkpoint(function, *args, use_reentrant=False) if with_cp else function(*args)


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Stochastic depth of every block: linear from 0 in the first to `last` (Huang et al., ECCV 2016)."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]


def tap(trunks: Sequence["Backbone"], unrolled: list) -> list[tuple]:
    """The outputs of several trunks that differ only in their outputs, in one pass.

    `unrolled` is the result of `Backbone.unroll` for the trunk with the last output. It is emptied, to free the map
    before the first stage after that stage.
    """
    x, size, steps = unrolled
    unrolled.clear()
    outs: list[list] = [[] for _ in trunks]
    for i, step in enumerate(steps):
        x = step(x)
        for own, trunk in zip(outs, trunks):
            if i in trunk.out_indices:
                own.append(trunk.to_feature_map(x, size, i))
    return [tuple(own) for own in outs]


def check_image(x: Tensor, model: "Backbone") -> Tensor:
    """`x`, if it is a floating-point batch of images with a model's channels; else a ValueError.

    float64 is for weights in float64 alone; other types may be cast by autocast or FSDP.
    """
    channels, dtype = model.in_channels, next(model.parameters()).dtype
    fits = isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] == channels and x.is_floating_point()
    fits = fits and x.shape[2] > 0 and x.shape[3] > 0
    if not fits or (x.dtype == torch.float64) != (dtype == torch.float64):
        got = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise OptionError(
            f"image: got {got}, expected {dtype} [B, {channels}, H, W], normalised by mean and std of model.cfg; the "
            "option in_channels makes a model for other channels"
        )
    return x


def _before_load_state_dict(model: "Backbone", state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    remap_keys_in_place(model, state, prefix)
    if any(key.startswith(prefix) for key in state):
        model.unloaded_warning.remove()


def _warn_unloaded(model: "Backbone", *_: Any) -> None:
    """Forward pre-hook of a backbone whose weights were not loaded. It removes itself."""
    # A compiler cannot trace logging. Models on the meta device are counted, not used.
    if torch.compiler.is_compiling() or next(model.parameters()).is_meta:
        return
    model.unloaded_warning.remove()
    logger.warning(
        "%s: init_cfg=%s was not loaded, so the weights are random; call init_weights() of the model, or load a state "
        "dict, before the first forward pass",
        type(model).__name__,
        model.init_cfg,
    )


class Stage(nn.Module):
    """Blocks of one resolution, and the downsampling to the next one.

    Args:
        downsample: From the map after the blocks to the input of the next stage; None if a block does it, or if no
            stage follows.
        with_cp: Recompute the activations of every block, and of `downsample`, in the backward pass.
    """

    def __init__(self, blocks: Iterable[nn.Module], downsample: nn.Module | None = None, with_cp: bool = False) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def run(self, layer: nn.Module, x: Tensor, *args: Any) -> Tensor:
        """A block or `downsample` on a map, with activation checkpointing in training if the stage has it."""
        return maybe_checkpoint(layer, x, *args, with_cp=self.with_cp and self.training)

    def steps(self) -> list[list[nn.Module]]:
        """Every block, with what follows it before the next one: `downsample` belongs to the last block."""
        steps = [[block] for block in self.blocks]
        steps[-1] += [self.downsample] if self.downsample is not None else []
        return steps

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, H, W, C]`` after the blocks, before `downsample`: ``[B, H', W', C']``."""
        for block in self.blocks:
            x = self.run(block, x)  # [B, H', W', C']
        return x


class Backbone(Module):
    """Base of all backbones: stages with one normalised output map each.

    A subclass takes the arguments below as ``**common`` and passes them on to this constructor, which keeps them as
    attributes. It then builds `patch_embed`, `absolute_pos_embed` and `stages`, and calls `build_outputs_and_freeze`.
    With other modules it overrides `stem_modules`, `stage_modules`, `unused_modules` and a method of the forward pass.

    Most subclasses also have `arch`, the name of a row of their table of sizes or a dict of its fields, and
    `mlp_ratio`, the hidden width of MLPs over their input.

    Args:
        in_channels: Image channels.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0 at the first.
        out_indices: Stages to return, ascending, counted from 0.
        frozen_stages: -1 freezes nothing; 0 the stem; n also the first n stages with their output norms; ``'all'``
            everything: no part of the trunk is in the graph, in training mode or in an optimiser.
        finetune: ``'attention'`` trains attention, positions and output norms only ("Three things" section 4),
            ``'mlp'`` the MLPs in place of the attention, as its control; ``'lora'``, or ``dict(type='lora', rank=8,
            alpha=16, targets=('qkv', 'proj'))``, low-rank updates of linear layers and the output norms
            (`vitdense.layers.lora`); None trains everything. Refused if a backbone has no such part.
        with_cp: Recompute activations in the backward pass: less memory, more time, the same gradients.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)``, or the checkpoint alone, loads exactly or raises; see
            `init_weights`.

    Raises:
        ValueError: A value is unknown, of another kind or out of range, or values do not fit together.
        TypeError: An argument that neither the subclass nor this class has.

    Attributes:
        family: Name of the family in `vitdense.checkpoint.schemes.NAMING`.
        arch: Its row of the family's table of sizes.
        in_channels: Image channels.
        out_channels: Channels of each output.
        out_strides: Stride of each output in pixels.
        load_report: Report of loading `init_cfg`; None when nothing was loaded.
        unloaded_warning: Handle of the hook that warns of a forward pass before the weights of `init_cfg` are loaded.
        cfg: Row of the model table for the weights, with normalisation and licence. None for other weights; after
            `create` then the row of the name, without facts of weights.
        place: Key of the backbone in a config, for error messages.
        takes_tensors: Whether it may be built on the meta device and get the tensors of a file; see
            `vitdense.checkpoint.fit.fill`.
    """

    family: str
    in_channels: int
    out_channels: tuple[int, ...]
    out_strides: tuple[int, ...]
    load_report: LoadReport | None = None
    cfg: Model | None = None
    place: str = "model.backbone"
    takes_tensors: bool = True

    def __new__(cls, *args: Any, **options: Any) -> "Backbone":
        """Check the arguments of all classes before anything is built."""
        check_arguments(cls, options)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        out_indices: Sequence[int] | None = (0, 1, 2, 3),
        frozen_stages: int | str = -1,
        finetune: Finetune = None,
        with_cp: bool = False,
        init_cfg: InitCfg = None,
    ) -> None:
        if isinstance(init_cfg, (str, Path)):
            init_cfg = {"type": "Pretrained", "checkpoint": init_cfg}
        check_init_cfg(init_cfg)
        super().__init__(init_cfg)
        self.in_channels, self.drop_path_rate, self.with_cp = in_channels, drop_path_rate, with_cp
        self.out_indices, self.frozen_stages, self.finetune = out_indices, frozen_stages, finetune
        self.unloaded_warning = self.register_forward_pre_hook(_warn_unloaded)
        if not self._names_weights():
            self.unloaded_warning.remove()

    def _names_weights(self) -> bool:
        cfgs = self.init_cfg if isinstance(self.init_cfg, (list, tuple)) else [self.init_cfg]
        return any(cfg and cfg.get("type") == "Pretrained" for cfg in cfgs)

    def build_outputs_and_freeze(
        self, dims: Sequence[int], strides: Sequence[int], norm: Callable[[int], nn.Module] = LayerNorm
    ) -> None:
        """Add an output norm ``norm{i}`` per index, made by `norm` from its channels, declare the outputs, and freeze.
        `dims` are the channels of every stage, `strides` are in pixels. An index, a number of stages or a mode that
        does not exist is an `OptionError`.
        """
        n, finetune = len(dims), self.finetune
        indices = tuple(self.out_indices)
        if not indices or list(indices) != sorted(set(indices)) or indices[-1] >= n:
            raise OptionError(f"out_indices: got {self.out_indices}, expected ascending stages from 0 to {n - 1}")
        frozen_stages = n if self.frozen_stages == "all" else self.frozen_stages
        if not (is_whole(frozen_stages, -1) and frozen_stages <= n):
            raise OptionError(f"frozen_stages: got {frozen_stages!r}, expected -1 (none) to {n}, or 'all'")
        options = dict(finetune) if isinstance(finetune, Mapping) else {"type": finetune}
        kind = options.pop("type", None)
        known = [part.name for part in fields(LoRA)]
        if kind not in (None, *FINETUNE) or (options and not (kind == "lora" and options.keys() <= set(known))):
            raise OptionError(
                f"finetune: got {finetune!r}, expected None (all), one of {', '.join(FINETUNE)}, or dict(type='lora') "
                f"with any of {', '.join(known)}"
            )
        if kind and frozen_stages == n:
            raise OptionError(f"finetune, frozen_stages: got {kind!r}, but all is frozen; leave out one of them")
        self.out_indices = indices
        self.frozen_stages = frozen_stages
        self.out_channels = tuple(dims[i] for i in indices)
        self.out_strides = tuple(strides[i] for i in indices)
        for i in indices:
            self.add_module(f"norm{i}", norm(dims[i]))
        # `load_state_dict`, also of a detector with this backbone, then accepts other naming schemes.
        self.register_load_state_dict_pre_hook(_before_load_state_dict)
        # In the constructor, before an optimiser or DDP looks at `requires_grad`.
        for module in (*self.frozen_modules(), *self.unused_modules()):
            module.requires_grad_(False)
        if kind == "lora":
            fixed = {part for module in (*self.frozen_modules(), *self.unused_modules()) for part in module.modules()}
            add_lora([item for item in self.named_modules() if item[1] not in fixed], LoRA(**options))
        part = {"attention": ATTENTION}.get(kind, kind)
        if kind and not any(re.fullmatch(rf".+\.{part}\d*\..+", name) for name, _ in self.named_parameters()):
            raise OptionError(f"finetune: got {kind!r}, which a {type(self).__name__} does not have; leave it None")
        for name, parameter in self.named_parameters():
            if kind and not re.fullmatch(FINETUNE[kind], name):
                parameter.requires_grad_(False)

    @property
    def feature_info(self) -> "FeatureInfo":
        """Channels and strides of the outputs with timm's interface: ``.channels()``, ``.reduction()``."""
        from timm.models import FeatureInfo

        outputs = zip(self.out_channels, self.out_strides, self.out_indices)
        rows = [{"num_chs": c, "reduction": stride, "module": f"norm{i}"} for c, stride, i in outputs]
        return FeatureInfo(rows, out_indices=tuple(range(len(rows))))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Image ``[B, 3, H, W]`` to one map ``[B, C_i, H_i, W_i]`` per index of `out_indices`."""
        return self.forward_patches(self.embed(x))

    def embed(self, x: Tensor) -> Tensor:
        """The input of `forward_patches` from an image ``[B, 3, H, W]``."""
        return self.patch_embed(check_image(x, self))

    def forward_patches(self, x: Tensor) -> tuple[Tensor | tuple[Tensor, ...], ...]:
        """As `forward`, from patches ``[B, h, w, C]``, for masked pretraining."""
        unrolled = [*self.unroll(x)]
        del x
        (outs,) = tap([self], unrolled)
        return outs

    def unroll(self, x: Tensor) -> tuple[Tensor, tuple[int, int], list[Callable[[Tensor], Tensor]]]:
        """A forward pass of patches ``[B, h, w, C]`` in steps: the map before the first stage, its (h, w), and every
        stage up to the last output as a function."""
        x = self.absolute_pos_embed(x)
        steps = [partial(self.forward_stage, stage=i) for i in range(self.out_indices[-1] + 1)]
        return x, (x.shape[1], x.shape[2]), steps

    def to_feature_map(self, x: Tensor, size: tuple[int, int], index: int) -> Tensor | tuple[Tensor, ...]:
        """An output from the result of a step of `unroll`; `size` (h, w) of the map of patches."""
        return self.output(x, index)  # [B, C_i, H_i, W_i]

    def forward_stage(self, x: Tensor, stage: int) -> Tensor:
        """The map before a stage to the map after it."""
        stages = self.stage_modules()
        if stage > 0 and stages[stage - 1].downsample is not None:
            x = stages[stage - 1].run(stages[stage - 1].downsample, x)  # [B, H_i, W_i, C_i]
        return stages[stage](x)

    def stem_modules(self) -> list[nn.Module]:
        """Modules before the first stage."""
        return [self.patch_embed, self.absolute_pos_embed]

    def stage_modules(self) -> Sequence[nn.Module]:
        """Stages in order: what `frozen_stages` counts."""
        return self.stages

    def unused_modules(self) -> list[nn.Module]:
        """Modules after the last output: kept, so that checkpoints load exactly, but neither run nor trained."""
        last = self.out_indices[-1]
        downsample = [getattr(stage, "downsample", None) for stage in self.stage_modules()[last : last + 1]]
        return [*self.stage_modules()[last + 1 :], *(module for module in downsample if module is not None)]

    def frozen_modules(self) -> list[nn.Module]:
        """Modules that `frozen_stages` freezes: as in mmdet, the stem, then whole stages."""
        n = self.frozen_stages
        if n < 0:
            return []
        norms = [getattr(self, f"norm{i}") for i in self.out_indices if i < n]
        return [*self.stem_modules(), *self.stage_modules()[:n], *norms]

    def layers(self) -> list[list[nn.Module]]:
        """Modules by depth, for layer-wise learning-rate decay: the stem, then every block.

        A downsampling layer belongs to the block before it. Output norms and unused modules are in no layer.
        """
        stages = self.stage_modules()[: self.out_indices[-1] + 1]
        steps = (stage.steps() if hasattr(stage, "steps") else [[stage]] for stage in stages)  # a ViT has blocks alone
        return [self.stem_modules(), *(step for of_stage in steps for step in of_stage)]

    def output(self, x: Tensor, stage: int) -> Tensor:
        """Output map of a stage: norm, then ``[B, H, W, C]`` to ``[B, C, H, W]`` in channels-last memory."""
        return self.output_norm(stage)(x).permute(0, 3, 1, 2)  # [B, C, H, W]

    def output_norm(self, stage: int) -> nn.Module:
        return getattr(self, f"norm{stage}")

    def train(self, mode: bool = True) -> "Backbone":
        """As in torch, but frozen stages and frozen batch norms stay in eval mode (no drop path, no new statistics)."""
        super().train(mode)
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm) and module.affine]
        frozen = [norm for norm in norms if not norm.weight.requires_grad]
        for module in (*self.frozen_modules(), *frozen):
            module.eval()
        return self

    def init_weights(self) -> None:
        """Load ``init_cfg=dict(type='Pretrained', checkpoint=...)`` or ``init_cfg='...'`` exactly, or raise.

        `init_cfg` may hold the other arguments of `load_pretrained` too, which says what raises. Without `init_cfg` the
        weights stay as the constructor made them (truncated normal, std 0.02).
        """
        if not self._names_weights():
            super().init_weights()
            return
        cfgs = self.init_cfg if isinstance(self.init_cfg, (list, tuple)) else [self.init_cfg]
        if len(cfgs) > 1:
            raise OptionError(f"init_cfg: got Pretrained with others ({cfgs}); it fills everything, so give it alone")
        options = {key: value for key, value in cfgs[0].items() if key != "type"}
        with naming_option(
            f"--cfg-options {self.place}.init_cfg.checkpoint=FILE, or {self.place}.init_cfg=None without weights"
        ):
            self.load_weights(**options)

    def load_weights(self, checkpoint: str | Path, **options: Any) -> None:
        """Load weights exactly, and report it in the log and in `load_report`; see `load_pretrained`."""
        self.note_loaded(load_pretrained(self, checkpoint, **options), checkpoint)

    def note_loaded(self, report: LoadReport, checkpoint: str | Path) -> None:
        """Keep and log a load report, with a warning of weights under another licence than `OPEN_SOURCE`."""
        name = type(self).__name__
        self.load_report, self.cfg, self.is_init = report, row_of(checkpoint), True
        logger.info("%s: %s", name, report)
        if self.cfg and self.cfg.licence and self.cfg.licence.lower() not in OPEN_SOURCE:
            logger.warning("%s: the weights %s are under %s: see what it allows", name, self.cfg.name, self.cfg.licence)
