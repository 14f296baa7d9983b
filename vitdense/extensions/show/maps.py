"""What a model sees, as arrays: attention, features as colours, receptive fields and position biases.

`vitdense show` draws them. `attention` supports layers with an attribute `attends_over`: ``"BHWC"`` or ``"BCHW"``, the
layout of the input map; or ``"BNC"`` for tokens and the size of their map, or for windows.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitdense.errors import OptionError
from vitdense.layers.bias import LogCpbBias, TableBias
from vitdense.layers.layout import Windows
from vitdense.models.base import Stage
from vitdense.models.mvit.model import MViTBlock
from vitdense.models.swin.model import SwinBlock
from vitdense.models.vit.model import ViTBlock

CHANNELS_LAST = (Stage, SwinBlock, MViTBlock, ViTBlock)  # modules that return maps ``[B, H, W, C]``
# Names of the modules in attention layers that make the values (the last third of qkv), and that read weighted sums.
VALUES, READERS = ("norm_v", "v", "g", "qkv"), ("proj", "out")


@dataclass(frozen=True)
class AttentionMap:
    """What one position attends to: the weights of the values in the output of each head.

    After a softmax, the weights of a head are not negative, and add up to 1 together with the weights of padding. CaiT
    mixes its heads after the softmax, so its weights have any sign and sum.

    Attributes:
        query: (row, column) of the position on the map of queries.
        weights: Weights of the values of a map, ``[heads, h', w']``.
        tokens: Weights of the tokens before the map, such as a class token, ``[heads, E]``.
    """

    query: tuple[int, int]
    weights: Tensor
    tokens: Tensor


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that `attention` can look into, by name, in order."""
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "attends_over")}


@torch.inference_mode(False)
@torch.enable_grad()
def attention(model: Callable, image: Tensor, layer: nn.Module, query: tuple[float, float]) -> AttentionMap:
    """The attention of one position of an image to all others, in one layer.

    The layer runs as usual, and no matrix of all pairs is made: its output is a weighted sum of values, so a weight is
    the gradient of the sum with respect to a value. If values are max-pooled, a weight belongs to the position of the
    maximum in the first channel of the head.

    Args:
        model: Called with the image; it runs the layer. In eval mode: dropout would change the weights.
        image: ``[1, 3, H, W]``, normalised.
        layer: One of `attention_layers`.
        query: Position (y, x), 0 to 1 over the image.

    Raises:
        ValueError: The layer is not one of `attention_layers`, is in train mode, or is not run by the model.
    """
    if not hasattr(layer, "attends_over"):
        raise OptionError(f"layer: got {type(layer).__name__}, expected a layer of attention_layers(model)")
    if layer.training:
        raise OptionError("layer: got one in train mode; call model.eval() first")
    args = _arguments(model, image.clone(), layer)  # the clone can have gradients, unlike a tensor of inference mode
    values, sums = _values_and_sums(layer, args)
    of_queries, _ = _heads_on_map(sums, layer, args)  # [h, w, heads, d]
    row, column = (min(int(at * n), n - 1) for at, n in zip(query, of_queries.shape))
    (gradient,) = torch.autograd.grad(of_queries[row, column, :, 0].sum(), values)
    weights, of_tokens = (x[..., 0].movedim(-1, 0) for x in _heads_on_map(gradient, layer, args))
    return AttentionMap((row, column), weights, of_tokens)


def _arguments(model: Callable, image: Tensor, layer: nn.Module) -> tuple[Any, ...]:
    """The arguments of a layer when the model sees the image."""
    calls: list[tuple] = []
    with torch.no_grad(), layer.register_forward_pre_hook(lambda _, args: calls.append(args)):
        model(image)
    if not calls:
        raise OptionError(
            f"layer: got a {type(layer).__name__} that the model does not run; it is after its last output"
        )
    return calls[0]


def _values_and_sums(attn: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """The values of an attention layer, as a leaf, and their weighted sums, in the layer's layout."""
    maker = next(getattr(attn, name) for name in VALUES if hasattr(attn, name))
    reader = next((getattr(attn, name) for name in READERS if hasattr(attn, name)), None)
    seen: dict[str, Tensor] = {}

    def replace_values(_: nn.Module, __: tuple, out: Tensor) -> Tensor:
        parts = out.detach().chunk(3 if maker is getattr(attn, "qkv", None) else 1, -1)
        seen["values"] = parts[-1].requires_grad_()
        return torch.cat(parts, -1)

    def keep_sums(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen["sums"] = inputs[0]

    with maker.register_forward_hook(replace_values), ExitStack() as stack:
        if reader is not None:
            stack.enter_context(reader.register_forward_pre_hook(keep_sums))
        out = attn(*args)
    return seen["values"], seen.get("sums", out)


def _heads_on_map(x: Tensor, attn: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """An attention layer's values or sums of an image, in windows, tokens or a map, as a map ``[h, w, heads, d]``
    without padding, and the tokens before it ``[E, heads, d]``."""
    windows = next((arg for arg in args if isinstance(arg, Windows)), None)
    before = None
    if attn.attends_over == "BCHW":
        x = x.movedim(1, -1)  # [1, h, w, C]
    elif windows is not None and (x.ndim == 2 or x.shape[1] == windows.tokens):
        x = windows.unpartition(x.view(-1, windows.tokens, x.shape[-1]))  # [1, h, w, C]
    elif x.ndim == 3:
        h, w = args[1]
        before, x = x[0, : -h * w], x[:, -h * w :].unflatten(1, (h, w))  # [E, C], [1, h, w, C]
    elif x.ndim == 5:  # heads apart
        x = x.flatten(3)  # [1, h, w, C]
    if attn.attends_over == "BHWC":  # maps smaller than a kernel are padded
        x = x[:, : args[0].shape[1], : args[0].shape[2]]  # [1, h, w, C]
    before = x.new_empty(0, x.shape[-1]) if before is None else before  # [E, C]
    heads = attn.num_heads if hasattr(attn, "num_heads") else attn.spec.num_heads
    return x[0].unflatten(-1, (heads, -1)), before.unflatten(-1, (heads, -1))


def features(model: Callable, image: Tensor, parts: Mapping[str, nn.Module]) -> dict[str, list[Tensor]]:
    """The maps that parts of a model compute from an image.

    Args:
        model: Called with the image; it runs the parts.
        image: ``[1, 3, H, W]``, normalised.
        parts: Backbones, necks, stages and blocks, or others that return maps.

    Returns:
        Name of a part -> all maps ``[C, h, w]`` that it returns.

    Raises:
        ValueError: The model does not run a part, or it does not return maps.
    """
    outs: dict[str, list[Tensor]] = {}
    with torch.no_grad(), ExitStack() as stack:
        for name, part in parts.items():
            stack.enter_context(part.register_forward_hook(partial(_keep_maps, outs, name)))
        model(image)
    if missing := [name for name in parts if name not in outs]:
        raise OptionError(f"parts: got {', '.join(missing)}, which the model does not run")
    return {name: outs[name] for name in parts}


def map_of(output: Any) -> Tensor:
    """The map of an output, which may have tokens with it."""
    return output[0] if isinstance(output, tuple) else output


def _keep_maps(outs: dict[str, list[Tensor]], name: str, part: nn.Module, args: tuple, out: Any) -> None:
    """Forward hook that keeps the maps of a part of one image."""
    if isinstance(part, ViTBlock):  # tokens; their size is an argument
        h, w = args[1]
        out = out[:, -h * w :].unflatten(1, (h, w))  # [1, h, w, C]
    if isinstance(part, CHANNELS_LAST):
        out = out.movedim(-1, 1)  # [1, C, h, w]
    maps = [out] if isinstance(out, Tensor) else list(out)
    maps = [map_of(x) for x in maps]
    if not all(isinstance(x, Tensor) and x.ndim == 4 for x in maps):
        raise OptionError(f"parts: got {name} ({type(part).__name__}), whose output is no map")
    outs[name] = [x[0] for x in maps]  # [C, h, w] each


def principal_colours(features: Tensor) -> Tensor:
    """The first three principal components of a map as red, green and blue: ``[C, h, w]`` to ``[h, w, 3]``, 0 to 1.

    Signs are chosen so that the component of the largest magnitude in each direction is positive. 0 and 1 are the 1st
    and the 99th percentile.
    """
    x = features.flatten(1).T.double()  # [N, C]
    x = x - x.mean(0)
    _, directions = torch.linalg.eigh(x.T @ x)  # ascending
    directions = directions[:, -3:].flip(1)  # [C, 3]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))  # [1, 3]
    x = x @ (directions * largest.sign())  # [N, 3]
    low, high = (torch.quantile(x, q, dim=0) for q in (0.01, 0.99))  # [3] each
    x = ((x - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return x.view(*features.shape[1:], 3).float()  # [h, w, 3]


@torch.inference_mode(False)
@torch.enable_grad()
def receptive_field(model: Callable[[Tensor], Tensor], images: Tensor, directions: int = 4) -> Tensor:
    """Effective receptive field of the centre of a map: how much each pixel changes it (Luo et al., NeurIPS 2016).

    Channels are added with random signs, the same at every call, because after a LayerNorm their sum is a constant.

    Args:
        model: Makes one map ``[B, C, h, w]`` of images.
        images: ``[B, 3, H, W]``, normalised.
        directions: Draws of signs, each a backward pass.

    Returns:
        ``[H, W]``: absolute gradients, summed over images, colours and draws; their sum is 1.
    """
    images = images.detach().clone().requires_grad_()
    y = model(images)
    centre = y[..., y.shape[2] // 2, y.shape[3] // 2]  # [B, C]
    signs = torch.randint(2, (directions, *centre.shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
    gradients = [
        torch.autograd.grad(centre, images, sign.to(centre), retain_graph=i + 1 < directions)[0]
        for i, sign in enumerate(signs)
    ]  # [B, 3, H, W] each
    field = torch.stack(gradients).abs().sum((0, 1, 2))  # [H, W]
    return field / field.sum()


def position_biases(model: nn.Module) -> dict[str, Tensor]:
    """Position biases of keys around a query, by layer of Swin and Swin V2: ``[heads, 2h - 1, 2w - 1]``, query in the
    middle."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (TableBias, LogCpbBias))}
    with torch.no_grad():
        tables = {name: layer.of_offsets().detach() for name, layer in layers.items()}  # [heads, (2h-1)(2w-1)]
    sizes = {name: [2 * side - 1 for side in layer.window] for name, layer in layers.items()}
    # A table counts from key to query; pictures show where the key is.
    return {name: table.unflatten(1, sizes[name]).flip(1, 2) for name, table in tables.items()}
