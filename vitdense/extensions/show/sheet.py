"""A contact sheet of what a trained detector or segmentor sees in an image."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vitdense.extensions.show import maps as show
from vitdense.extensions.show import pictures
from vitdense.files import atomic_write
from vitdense.mm.config.query import test_steps
from vitdense.mm.data.images import read_pixels
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import ImageReader, load_model
from vitdense.models.vit.model import default_out_indices

HEADS_SHOWN = 6  # per layer
FIELD_CELL, BIAS_CELL = 8, 16  # side in pixels
Row = tuple[str, list[tuple[str, np.ndarray]]]


def contact_sheet(
    cfg: Config,
    checkpoint: str,
    image: Path,
    out_file: Path,
    query: tuple[float, float] = (0.5, 0.5),
    layers: Sequence[str] = (),
    device: str = "cpu",
    classes: Sequence[str] | None = None,
) -> Path:
    """Draw the rows of `sheet_rows` for a trained model, see `load_model`, as a PNG file; returns `out_file`.

    Raises:
        ConfigError: The image cannot be read, or the model has no such layer.
    """
    read_pixels(image)  # raises before the model is loaded
    rows = sheet_rows(load_model(cfg, checkpoint, device, classes=classes), image, query, layers)
    with atomic_write(out_file) as scratch:
        Image.fromarray(pictures.contact_sheet(rows)).save(scratch, format=None if out_file.suffix else "PNG")
    return out_file


def sheet_rows(
    model: nn.Module, image: Path, query: tuple[float, float] = (0.5, 0.5), layers: Sequence[str] = ()
) -> list[Row]:
    """Pictures of what the parts of a model see in an image.

    Rows: the image; principal components and the most varying channel of the maps of backbone and neck; attention of a
    position in some layers, mean over heads and every head; effective receptive fields of the backbone's maps; position
    biases.

    Args:
        model: A model of `load_model`.
        image: Image file.
        query: The position (y, x), 0 to 1 over the image.
        layers: Names of attention layers that the model runs; when empty, the last two of every stage, or the last of
            every quarter of a plain ViT.

    Returns:
        (title, [(caption, picture [H, W, 3] uint8 RGB), ...]) of each row.

    Raises:
        ConfigError: A layer that the model does not have, or does not run.
    """
    pixels, inputs = model_inputs(model, image)
    rows = [("image", [("as the model reads it; the cross is where attention is asked", _marked(pixels, query))])]
    parts = {name: getattr(model, name) for name in ("backbone", "neck") if getattr(model, name, None) is not None}
    attention = show.attention_layers(model.backbone)
    run: set[str] = set()  # layers after the last map do not run
    handles = [x.register_forward_pre_hook(lambda *_, name=name: run.add(name)) for name, x in attention.items()]
    try:
        found = show.features(model.extract_feat, inputs, parts)
    finally:
        for handle in handles:
            handle.remove()
    for name, maps in found.items():
        rows.append((f"{name}: principal components", [_colours(pixels, inputs, x) for x in maps]))
        rows.append((f"{name}: channel that varies most", [_channel(pixels, inputs, x) for x in maps]))
    for name in layers or _chosen(x for x in attention if x in run):
        if name not in run:
            raise ConfigError(f"layer: got {name!r}, expected one of {', '.join(x for x in attention if x in run)}")
        rows.append((f"attention: {name}", _attention(model, pixels, inputs, attention[name], query)))
    rows.append(("effective receptive field", _fields(model, pixels, inputs, found["backbone"])))
    biases = show.position_biases(model.backbone)
    for name in _chosen((x for x in biases if x.rpartition(".")[0] in run), 1):
        rows.append((f"position bias: {name}", [_bias(i, x) for i, x in enumerate(biases[name][:HEADS_SHOWN])]))
    return rows


def model_inputs(model: nn.Module, image: Path) -> tuple[np.ndarray, Tensor]:
    """An image file as a model sees it: pixels [H, W, 3] uint8 RGB, and normalised, ``[1, 3, H, W]``."""
    reader = ImageReader(test_steps(model.cfg))
    data = reader.inputs(image, reader.pixels(image))
    pre = model.data_preprocessor
    inputs = pre(pseudo_collate([data]), False)["inputs"]  # [1, 3, H, W]
    pixels = inputs[0] * pre.std + pre.mean if hasattr(pre, "mean") else inputs[0]
    return pixels.clamp(0, 255).round().byte().permute(1, 2, 0).cpu().numpy(), inputs


def _chosen(layers: Iterable[str], of_stage: int = 2) -> list[str]:
    """The last two layers of every stage (one of two Swin blocks shifts its windows), or the last of every quarter of a
    plain ViT."""
    stages: dict[str, list[str]] = {}
    for name in layers:
        stages.setdefault(name.rpartition("blocks.")[0], []).append(name)
    if len(stages) == 1:
        (names,) = stages.values()
        return [names[i] for i in default_out_indices(len(names))]
    return [name for stage in stages.values() for name in stage[-of_stage:]]


def _stride(inputs: Tensor, size: Sequence[int]) -> tuple[int, int]:
    """Height and width in pixels of a map's cells; powers of 2 if they fit, as a map may cover more than the image."""
    least = [-(-n // m) for n, m in zip(inputs.shape[2:], size)]
    powers = [1 << (n - 1).bit_length() for n in least]
    return tuple(p if -(-n // p) == m else low for n, m, p, low in zip(inputs.shape[2:], size, powers, least))


def _colours(pixels: np.ndarray, inputs: Tensor, features: Tensor) -> tuple[str, np.ndarray]:
    c, *size = features.shape
    stride = _stride(inputs, size)
    colours = show.principal_colours(features).cpu().numpy()
    return f"{c} channels, stride {stride[0]}", pictures.cells(pixels, colours, stride)


def _channel(pixels: np.ndarray, inputs: Tensor, features: Tensor) -> tuple[str, np.ndarray]:
    channel = features.flatten(1).var(1).argmax().item()
    values = features[channel].cpu().numpy()  # [h, w]
    low, high = values.min(), values.max()
    grey = np.repeat((values - low)[..., None] / max(high - low, 1e-12), 3, -1)  # [h, w, 3]
    return f"channel {channel}: {low:+.1f} to {high:+.1f}", pictures.cells(pixels, grey, _stride(inputs, values.shape))


def _attention(
    model: nn.Module, pixels: np.ndarray, inputs: Tensor, layer: nn.Module, query: tuple[float, float]
) -> list[tuple[str, np.ndarray]]:
    found = show.attention(model.extract_feat, inputs, layer, query)
    weights = found.weights.cpu().numpy()  # [heads, h, w]
    signed = ", absolute weights" if (weights < 0).any() else ""  # heads were mixed after the softmax
    stride, size = _stride(inputs, weights.shape[1:]), np.abs(weights)
    maps = [("mean of the heads", size.mean(0)), *((f"head {i}", x) for i, x in enumerate(size))]
    return [(name + signed, _marked(pictures.heat(pixels, x, stride), query)) for name, x in maps[: 1 + HEADS_SHOWN]]


def _fields(
    model: nn.Module, pixels: np.ndarray, inputs: Tensor, maps: Sequence[Tensor]
) -> list[tuple[str, np.ndarray]]:
    rows = []
    for i, features in enumerate(maps):
        field = show.receptive_field(lambda x, i=i: show.map_of(model.backbone(x)[i]), inputs)  # [H, W]
        # Single pixels vary by orders of magnitude; means over cells and the root make the shape visible.
        field = F.avg_pool2d(field[None], FIELD_CELL, ceil_mode=True)[0].sqrt()  # [H / cell, W / cell]
        picture = pictures.heat(pixels, field.cpu().numpy(), (FIELD_CELL, FIELD_CELL))
        rows.append((f"map {i}, stride {_stride(inputs, features.shape[1:])[0]}", picture))
    return rows


def _bias(head: int, bias: Tensor) -> tuple[str, np.ndarray]:
    """Bias [2h - 1, 2w - 1] as a picture, from its smallest to its largest value; the cross is the query."""
    low, high = bias.min().item(), bias.max().item()
    blank = np.zeros((*(BIAS_CELL * n for n in bias.shape), 3), np.uint8)
    picture = pictures.heat(blank, (bias - low).cpu().numpy(), (BIAS_CELL, BIAS_CELL))
    return f"head {head}: {low:+.1f} to {high:+.1f}", _marked(picture, (0.5, 0.5))


def _marked(pixels: np.ndarray, query: tuple[float, float]) -> np.ndarray:
    return pictures.cross(pixels, tuple(int(at * n) for at, n in zip(query, pixels.shape)))
