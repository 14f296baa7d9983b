"""Any trunk of timm or transformers as a backbone; `measure` tells what it returns."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitdense.checkpoint.detect import unwrap
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import LoadReport, fill, match_exactly
from vitdense.checkpoint.read import read, renamed_by_timm
from vitdense.errors import OptionError
from vitdense.extensions.trunks.measure import Facts, measure, parts
from vitdense.extensions.trunks.rows import find_file, find_row, hub_errors
from vitdense.layers.blocks import pad_to_multiple
from vitdense.models.base import Backbone, check_image
from vitdense.models.vit.model import default_out_indices

OUTPUT_NORMS = "hidden_states_norms."  # in backbones of transformers, but not in its other models
MAY_BE_MISSING = (r".+\.lora\..+", r".+\.num_batches_tracked")


class ForeignTrunk(Backbone):
    """A trunk of another project, with its own code and names, as a `Backbone`.

    Maps are not normalised. From an image of H x W they are ceil(H / stride) x ceil(W / stride). If the trunk needs
    whole patches or windows, the image is padded right and bottom, and cells that show only padding are cut off. A
    stage is an output, with the parameters that it depends on, but no output before it. Arguments not listed here: see
    `Backbone`.

    A subclass has `build`, which makes the trunk; `maps`, which returns all outputs ``[B, C_i, H_i, W_i]`` or chosen
    ones; `multiples`, candidates for the multiple that sides of images are padded to; and `recompute`, which turns
    activation checkpointing on.

    Args:
        arch: Name in the other project.
        out_indices: Outputs, with the other project's numbers. None: with several strides the last output of each, at
            most the last four; with one stride the last block of every quarter.

    Raises:
        ValueError: There is no such trunk, it takes only images of one size, its maps have no strides, or it does not
            support an option.
        ImportError: The other project is not installed.
    """

    takes_tensors = False  # files may lack buffers

    def __init__(self, arch: str, *, out_indices: Sequence[int] | None = None, **common: Any) -> None:
        super().__init__(out_indices=out_indices, **common)
        self.arch = arch
        self.facts = _facts(type(self), arch, self.in_channels)
        self.trunk = self.build(arch, self.in_channels, self.drop_path_rate)
        if out_indices is None:
            last = {stride: i for i, stride in enumerate(self.facts.strides)}
            quarters = default_out_indices(len(self.facts.strides))
            self.out_indices = tuple(sorted(last.values())[-4:]) if len(last) > 1 else quarters
        if self.with_cp:
            self.recompute()
        self.build_outputs_and_freeze(self.facts.channels, self.facts.strides, lambda _: nn.Identity())
        if self.frozen_stages == 0 and not self.stem_modules():
            raise OptionError(f"frozen_stages: got 0, but {arch} has no stem of its own; freeze whole stages")
        for name, module in self.trunk.named_modules():
            if hasattr(module, "lora") and name not in self.facts.called:
                raise OptionError(f"finetune: got 'lora', but {arch} reads the weight of {name} past its updates")

    def renamed(self, state: Mapping[str, Tensor], built: nn.Module | None) -> tuple[Mapping[str, Tensor], Collection]:
        """Weights of the project with the names of the trunk, and all names of the whole model there."""
        return state, ()

    def depths(self) -> Mapping[str, int]:
        """Parameter -> depth: 0 for the stem (parameters of the first stage without a number), else the stage."""
        stem = {name: 0 for name in self.facts.stages[0] if not re.search(r"\.\d+\.", name)}
        return {name: i for i, names in enumerate(self.facts.stages, 1) for name in names} | stem

    def layers(self) -> list[list[nn.Module]]:
        used, depths = self._used(), self.depths()
        every = sorted({0, *(depths[name] for name in used)})
        return [parts(self.trunk, frozenset(name for name in used if depths[name] == depth)) for depth in every]

    def stem_modules(self) -> list[nn.Module]:
        return self.layers()[0]

    def stage_modules(self) -> list[nn.Module]:
        return [nn.ModuleList(parts(self.trunk, names)) for names in self.facts.stages]

    def frozen_modules(self) -> list[nn.Module]:
        is_whole = self.frozen_stages == len(self.facts.stages)
        return [self.trunk] if is_whole else super().frozen_modules()

    def unused_modules(self) -> list[nn.Module]:
        return parts(self.trunk, frozenset(name for name, _ in self.trunk.named_parameters()) - self._used())

    def _used(self) -> frozenset[str]:
        """Parameters that an output depends on."""
        return frozenset().union(*self.facts.stages[: self.out_indices[-1] + 1])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `Backbone.forward`."""
        h, w = check_image(x, self).shape[2:]
        maps = self.maps(self.trunk, pad_to_multiple(x, self.facts.multiple), self.out_indices)
        sizes = [((h + stride - 1) // stride, (w + stride - 1) // stride) for stride in self.out_strides]
        return tuple(map(_cut, maps, sizes) if self.facts.multiple > 1 else maps)  # [B, C_i, H_i, W_i]

    def load_weights(self, checkpoint: str | Path, entry: str | None = None, prefix: str = "", **options: Any) -> None:
        """Load weights of the project, or a state dict of this class, exactly; for `options` see `read`."""
        content = read(checkpoint, **options)
        state = {key.removeprefix(prefix): x for key, x in unwrap(content, entry).items() if key.startswith(prefix)}
        self.fill(state, str(checkpoint), content.get("timm_model"))

    def fill(
        self, state: Mapping[str, Tensor], source: str, built: nn.Module | None = None, is_own: bool = True
    ) -> None:
        """See `load_weights`; for `is_own` see `vitdense.checkpoint.fit.fill`."""
        has_our_names, targets, whole = all(key.startswith("trunk.") for key in state), self.state_dict(), ()
        if not has_our_names:
            state, whole = self.renamed(state, built)
            state = {f"trunk.{key}": x for key, x in state.items()}
        report = LoadReport(source, "vitdense" if has_our_names else type(self).__name__)
        report.ignored = [key for key in state if key not in targets and key.removeprefix("trunk.") in whole]
        state = {key: x for key, x in state.items() if key not in report.ignored}
        fresh = [pattern for pattern in MAY_BE_MISSING if not any(re.fullmatch(pattern, key) for key in state)]
        state = match_exactly(targets, state, fresh, lambda *_: f"It is {source}; check arch and options. ")
        report.count(targets, state)
        fill(self, state, is_own)
        self.note_loaded(report, source)


def _cut(x: Tensor, size: tuple[int, int]) -> Tensor:
    """The upper left part of a map, of this size."""
    if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_compiling():
        return x[..., : size[0], : size[1]]
    # In a program for all sizes, torch does not know that the map is as large, and so not the size of the slice.
    rows, columns = (torch.arange(n, device=x.device) for n in size)
    return x.index_select(2, rows).index_select(3, columns)


@cache
def _facts(kind: type[ForeignTrunk], arch: str, in_channels: int) -> Facts:
    with torch.device("meta"):
        trunk = kind.build(arch, in_channels, 0.0).eval()
    return measure(arch, trunk, kind.maps, in_channels, kind.multiples(trunk))


class TimmTrunk(ForeignTrunk):
    """A model of timm: the maps of its `forward_intermediates`. For the arguments see `ForeignTrunk`."""

    @classmethod
    def build(cls, arch: str, in_channels: int, drop_path_rate: float) -> nn.Module:
        options = {"drop_path_rate": drop_path_rate, "dynamic_img_size": True, "strict_img_size": False}
        options = {key: value for key, value in options.items() if key in _timm_arguments(arch)}
        if drop_path_rate and "drop_path_rate" not in options:
            raise OptionError(f"drop_path_rate: got {drop_path_rate}, but {arch} of timm has none; leave it out")
        return timm.create_model(arch, num_classes=0, in_chans=in_channels, **options)

    @classmethod
    def maps(cls, trunk: nn.Module, x: Tensor, indices: Sequence[int] | None = None) -> Sequence[Tensor]:
        indices = None if indices is None else list(indices)
        return trunk.forward_intermediates(x, indices, stop_early=True, intermediates_only=True, output_fmt="NCHW")

    @classmethod
    def multiples(cls, trunk: nn.Module) -> Sequence[int]:
        stride = max(row["reduction"] for row in trunk.feature_info)
        return 1, stride, 2 * stride, trunk.pretrained_cfg["input_size"][-1]

    def recompute(self) -> None:
        try:
            self.trunk.set_grad_checkpointing(True)
        except AssertionError as error:
            raise OptionError(f"with_cp: got True, but {self.arch} of timm has no activation checkpointing") from error

    def renamed(self, state: Mapping[str, Tensor], built: nn.Module | None) -> tuple[Mapping[str, Tensor], Collection]:
        state, built = (state, built) if built is not None else renamed_by_timm(self.arch, state)
        return state, built.state_dict().keys()

    def depths(self) -> Mapping[str, int]:
        if not hasattr(self.trunk, "group_matcher"):
            return super().depths()
        return timm.models.group_parameters(self.trunk, self.trunk.group_matcher(coarse=False), reverse=True)


@cache
def _timm_arguments(arch: str) -> frozenset[str]:
    if not timm.is_model(arch):
        raise OptionError(f"arch: got {arch!r}, no model of timm {timm.__version__}; timm.list_models() lists them")
    with torch.device("meta"):
        kind = type(timm.create_model(arch))
    if not hasattr(kind, "forward_intermediates"):
        raise OptionError(f"arch: {arch} of timm {timm.__version__} has no forward_intermediates; update timm")
    return frozenset(signature(kind.__init__).parameters)


class TransformersTrunk(ForeignTrunk):
    """A backbone of transformers (`AutoBackbone`), without the output of its stem.

    `arch` is a folder with ``config.json``, or ``owner/repo`` of the hub. For other arguments see `ForeignTrunk`.
    """

    @classmethod
    def build(cls, arch: str, in_channels: int, drop_path_rate: float) -> nn.Module:
        with hub_errors(arch) as transformers:
            if (file := find_file(arch, "config.json")) is None:
                raise ValueError("it has no config.json")
            config = transformers.AutoConfig.from_pretrained(file.parent)
            if not hasattr(config, "stage_names"):
                raise ValueError(f"it is a {config.model_type}, which has none there (AutoBackbone); see timm://")
            config.out_features = [name for name in config.stage_names if name != "stem"]
            config.num_channels, config.drop_path_rate = in_channels, drop_path_rate
            return transformers.AutoBackbone.from_config(config)

    @classmethod
    def maps(cls, trunk: nn.Module, x: Tensor, indices: Sequence[int] | None = None) -> Sequence[Tensor]:
        maps = trunk(x).feature_maps
        return maps if indices is None else [maps[i] for i in indices]

    @classmethod
    def multiples(cls, trunk: nn.Module) -> Sequence[int]:
        patch = getattr(trunk.config, "patch_size", 1)
        return 1, max(patch) if isinstance(patch, Sequence) else patch, 32

    def recompute(self) -> None:
        if not self.trunk.supports_gradient_checkpointing:
            raise OptionError(f"with_cp: got True, but {self.arch} of transformers has no activation checkpointing")
        self.trunk.gradient_checkpointing_enable({"use_reentrant": False})

    def load_weights(self, checkpoint: str | Path, sha256: str | None = None, **options: Any) -> None:
        """As the base; but ``hf://owner/repo``, or ``hf://`` and a folder, is loaded by transformers."""
        if find_row(str(checkpoint)) is None:
            super().load_weights(checkpoint, sha256=sha256, **options)
            return
        kind = type(self.trunk)
        with hub_errors(self.arch):
            path = str(checkpoint).removeprefix("hf://")
            loaded, info = kind.from_pretrained(path, config=self.trunk.config, output_loading_info=True)
        norms = sorted(key for key in info["missing_keys"] if key.startswith(OUTPUT_NORMS))  # only backbones have them
        if lost := [*(info["missing_keys"] - {*norms}), *map(str, info["mismatched_keys"])]:
            raise CheckpointMismatchError(f"{checkpoint} does not fit {self.arch}: missing or of other sizes: {lost}")
        state = {f"trunk.{key}": x for key, x in loaded.state_dict().items()}
        self.fill(state, str(checkpoint), is_own=False)  # transformers may map the file
        self.load_report.ignored = sorted(info["unexpected_keys"])
        self.load_report.kept_at_init = [f"trunk.{key}" for key in norms]
