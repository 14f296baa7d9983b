"""Measure on the meta device what a trunk of another project returns: its own metadata may be wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from vitdense.checkpoint.formats import one_line
from vitdense.errors import OptionError

# Image sizes (h, w) in pixels for which exactly one of these strides explains a map, even if sizes are rounded down.
SIZES, STRIDES = ((500, 375), (737, 1001)), (*range(1, 33), 64)


@dataclass(frozen=True)
class Facts:
    """Measured facts of a trunk."""

    channels: tuple[int, ...]  # of every output
    strides: tuple[int, ...]  # of every output in pixels: maps are ceil(H / stride) x ceil(W / stride)
    multiple: int  # sides of images are padded to multiples
    stages: tuple[frozenset[str], ...]  # names of parameters that an output depends on, but no output before it
    called: frozenset[str]  # names of modules that are called; parameters of others are read directly


def measure(
    name: str,
    trunk: nn.Module,
    maps: Callable[[nn.Module, Tensor], Sequence[Tensor]],
    in_channels: int,
    multiples: Iterable[int],
) -> Facts:
    """The facts of a trunk on the meta device, in eval mode.

    Args:
        name, in_channels: Name and image channels of the trunk.
        maps: From a trunk and images ``[B, in_channels, H, W]`` to all outputs ``[B, C_i, H_i, W_i]``.
        multiples: Tried in turn; an `OptionError` if none works for images of `SIZES` with a stride for each map.
    """
    names, refused = {module: name for name, module in trunk.named_modules()}, ""
    for multiple in multiples:
        images = [tuple(-(-n // multiple) * multiple for n in size) for size in SIZES]
        called: set[str] = set()
        hook = register_module_forward_hook(lambda module, *_, called=called: called.add(names.get(module, "")))
        try:
            with hook, torch.inference_mode(False), torch.enable_grad(), torch.device("meta"):
                passes = [maps(trunk, torch.empty(1, in_channels, *image)) for image in images]
        except Exception as error:  # code of another project can raise anything
            refused = f"with images of {images[0]} pixels, {type(error).__name__}: {one_line(error)}"
            continue
        sizes = [[tuple(x.shape[2:]) for x in outs] for outs in zip(*passes)]  # of every output
        strides = tuple(next((s for s in STRIDES if _sizes(images, s) == of), None) for of in sizes)
        if strides and None not in strides:
            channels = tuple(x.shape[1] for x in passes[0])
            return Facts(channels, strides, multiple, _stages(trunk, passes[0]), frozenset(called))
        refused = f"no strides explain its maps {[size for size, _ in sizes]} of images of {images[0]} pixels"
    raise OptionError(f"{name} is no trunk for images of any size: {refused}")


def _sizes(images: Sequence[tuple[int, int]], stride: int) -> list[tuple[int, ...]]:
    return [tuple(-(-n // stride) for n in image) for image in images]


def _stages(trunk: nn.Module, maps: Sequence[Tensor]) -> tuple[frozenset[str], ...]:
    """See `Facts.stages`; walks through the graph from every output to the parameters."""
    names, seen, stages = {id(parameter): name for name, parameter in trunk.named_parameters()}, {None}, []
    for x in maps:
        found, nodes = set(), [x.grad_fn]
        while nodes:
            if (node := nodes.pop()) not in seen:
                seen.add(node)
                found.add(names.get(id(getattr(node, "variable", None))))
                nodes += [before for before, _ in node.next_functions]
        stages.append(frozenset(found - {None}))
    return tuple(stages)


def parts(module: nn.Module, names: frozenset[str], prefix: str = "") -> list[nn.Module]:
    """The largest modules whose parameters all have these names, then lists of remaining parameters."""
    inner = [prefix + name for name, _ in module.named_parameters()]
    if names.isdisjoint(inner):
        return []
    if names.issuperset(inner):
        return [module]
    found = [part for name, child in module.named_children() for part in parts(child, names, f"{prefix}{name}.")]
    own = [parameter for name, parameter in module.named_parameters(recurse=False) if prefix + name in names]
    return [*found, *([nn.ParameterList(own)] if own else [])]
