"""Parameters and multiply-adds of models."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import torchvision  # noqa: F401 registers its ops
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from vitdense.errors import OptionError

_counting = ContextVar("counting", default=False)
BOX_ROIS, MASK_ROIS = 1000, 100  # per stage, as in published counts of Mask R-CNN


@dataclass(frozen=True)
class Row:
    """Parameters of a module, and its multiply-adds (MACs) in convolutions, linear layers and matmuls."""

    name: str
    params: int
    macs: int


class _PublishedAttention(TorchFunctionMode):
    """Count attention as papers do; output values are meaningless.

    Queries and keys are cut to the length of values. Longer ones carry a position bias, which papers count as an
    addition; see `vitdense.layers.attention.attend_decomposed`.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is F.scaled_dot_product_attention:
            q, k, v, *others = args
            args = (q[..., : v.shape[-1]], k[..., : v.shape[-1]], v, *others)
        return func(*args, **(kwargs or {}))


def macs(function: Callable[[], object]) -> tuple[object, int]:
    """Run `function` on the meta device; its result and its MACs (papers call a MAC a FLOP)."""
    deform = torch.ops.torchvision.deform_conv2d
    formulas = {deform: lambda x, weight, *args, out_shape: 2 * math.prod(out_shape) * math.prod(weight[1:])}
    token = _counting.set(True)
    try:
        with FlopCounterMode(display=False, custom_mapping=formulas) as counter, _PublishedAttention():
            result = function()
    finally:
        _counting.reset(token)
    return result, counter.get_total_flops() // 2


def is_counted(x: Tensor) -> bool:
    """Whether `macs` is counting; a layer then computes the products that papers count."""
    return x.is_meta and _counting.get()


def num_params(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def count(model: nn.Module, shape: tuple[int, int]) -> list[Row]:
    """Parameters and MACs of a detector or segmentor of mmdet or mmseg, a row per part; a ValueError without a head.

    RoI heads are counted as in papers: 1000 boxes and 100 masks per stage, or the proposals of Sparse R-CNN. The
    auxiliary head of a segmentor has no MACs, because it does not run at test time. Bilinear sampling has none either.

    Args:
        model: In eval mode, on the meta device, so that nothing is computed. Heads with multi-scale deformable
            attention need values: for them the model is moved to the CPU and filled with zeros.
        shape: Image height and width in pixels.

    Returns:
        Rows in order of execution, the backbone first.
    """
    rows = []

    def add(name: str, module: nn.Module, function: Callable[[], object] = lambda: None) -> object:
        result, cost = macs(function)
        rows.append(Row(name, num_params(module), cost))
        return result

    image = torch.empty(1, 3, *shape, device="meta")  # [1, 3, H, W]
    maps = add("backbone", model.backbone, lambda: model.backbone(image))
    if getattr(model, "neck", None) is not None:
        maps = add("neck", model.neck, lambda: model.neck(maps))
    if hasattr(model, "forward_transformer"):  # DETR and its descendants
        _add_transformer(add, model, maps, shape)
        return rows
    proposals = getattr(getattr(model, "rpn_head", None), "num_proposals", None)
    if getattr(model, "rpn_head", None) is not None:
        add("rpn_head", model.rpn_head, lambda: model.rpn_head(maps) if proposals is None else None)
    if getattr(model, "roi_head", None) is not None:
        if getattr(model.roi_head, "semantic_head", None) is not None:
            add("roi_head.semantic_head", model.roi_head.semantic_head, lambda: model.roi_head.semantic_head(maps))
        for kind, rois in (("bbox", proposals or BOX_ROIS), ("mask", MASK_ROIS)):
            _add_roi_heads(add, model.roi_head, kind, rois)
        return rows
    for name in ("bbox_head", "panoptic_head", "decode_head"):
        head = getattr(model, name, None)
        if head is None:
            continue
        inputs = (maps,)
        if any(type(part).__name__ == "MultiScaleDeformableAttention" for part in head.modules()):
            inputs = (_zeros_on_cpu(model, maps), _samples(shape))  # a Mask2Former, which also takes the samples
        add(name, head, lambda head=head, inputs=inputs: head(*inputs))
        if getattr(model, "auxiliary_head", None) is not None:
            add("auxiliary_head (training only)", model.auxiliary_head)
        return rows
    raise OptionError(
        f"{type(model).__name__} cannot be counted: expected a roi_head, bbox_head, panoptic_head or decode_head"
    )


def _add_roi_heads(add: Callable, roi_head: nn.Module, kind: str, rois: int) -> None:
    heads = getattr(roi_head, f"{kind}_head", None)
    if heads is None:
        return
    for name, head in heads.named_children() if isinstance(heads, nn.ModuleList) else [("", heads)]:
        extractor = getattr(roi_head, f"{kind}_roi_extractor")
        extractor = extractor[int(name)] if isinstance(extractor, nn.ModuleList) else extractor
        size = extractor.roi_layers[0].output_size
        inputs = [torch.empty(rois, extractor.out_channels, *size, device="meta")]  # [rois, C, h, w]
        if hasattr(head, "conv_res"):  # HTC adds features of the stage before
            inputs.append(inputs[0])
        elif hasattr(head, "instance_interactive_conv"):  # Sparse R-CNN's heads also read its proposals
            inputs.append(torch.empty(1, rois, extractor.out_channels, device="meta"))  # [1, rois, C]
        add(f"roi_head.{kind}_head{'.' * bool(name)}{name}", head, lambda head=head, inputs=inputs: head(*inputs))


def _add_transformer(add: Callable, model: nn.Module, maps: Sequence[Tensor], shape: tuple[int, int]) -> None:
    maps, head = _zeros_on_cpu(model, maps), model.bbox_head
    parts = [part for name, part in model.named_children() if name not in ("backbone", "neck", "bbox_head")]
    transformer = nn.ModuleList([*parts, nn.ParameterList(model.parameters(recurse=False))])
    outputs = add("transformer", transformer, lambda: model.forward_transformer(maps, _samples(shape)))
    add("bbox_head", head, lambda: head(outputs["hidden_states"], outputs["references"]))


def _zeros_on_cpu(model: nn.Module, maps: Sequence[Tensor]) -> list[Tensor]:
    """Move a model from the meta device to the CPU, in place, and its maps. All values are zero."""
    for tensor in (*model.to_empty(device="cpu").parameters(), *model.buffers()):
        tensor.zero_()
    return [torch.zeros(x.shape) for x in maps]


def _samples(shape: tuple[int, int]) -> list[SimpleNamespace]:
    meta = {"img_shape": shape, "batch_input_shape": shape}
    return [SimpleNamespace(metainfo=meta, **meta)]


def table(rows: Sequence[Row]) -> str:
    """Rows and their total as text."""
    total = Row("total", sum(row.params for row in rows), sum(row.macs for row in rows))
    width = max(len(row.name) for row in (*rows, total))
    lines = [f"{'module':{width}}  {'params (M)':>10}  {'MACs (G)':>10}"]
    lines += [f"{row.name:{width}}  {row.params / 1e6:10.3f}  {row.macs / 1e9:10.2f}" for row in (*rows, total)]
    return "\n".join(lines)
