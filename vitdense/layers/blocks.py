"""Patch embedding and merging on maps of any size. Inside, maps are ``[B, H, W, C]``."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx
from torch.nn.init import trunc_normal_
from torch.nn.modules.batchnorm import _BatchNorm

from vitdense.layers.layout import allows_own_gradients, without_autocast, zero


def init_transformer(module: nn.Module) -> None:
    """Initialise linear layers by a truncated normal with std 0.02 and zero bias (as Swin and ViT); use with `apply`.

    The meta device is skipped: drawing values would take most of the time to build a model.
    """
    if isinstance(module, nn.Linear) and not module.weight.is_meta:
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def init_conv(module: nn.Module) -> None:
    """Initialise convolutions with variance 2 / fan-out (He et al., ICCV 2015) and zero bias; use with `apply`."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., ECCV 2016): in training, drops the branch of an image with a probability.

    Equal to timm's, without importing timm.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """``[B, ...]`` to the same."""
        if not self.training or self.drop_prob == 0:
            return x
        keep = 1 - self.drop_prob
        kept = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(keep)  # [B, 1, ...]
        if keep > 0:
            kept.div_(keep)
        return x * kept

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob:.3f}"


class ResidualLayerNorm(nn.LayerNorm):
    """LayerNorm whose result starts the residual stream or is added to it, in the dtype of its weights.

    Under autocast that is float32, as in torch on a GPU. On a CPU torch would stay in half precision, and lose digits
    in the sum of the weights' gradients over all tokens.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to the same."""
        return super().forward(x.to(self.weight.dtype))


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of every pixel, with timm's arguments and names, without importing timm."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__(num_channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LayerNorm(ResidualLayerNorm):
    """LayerNorm whose result is read only by linear layers, attention and convolutions.

    Under autocast these compute in half precision. On a GPU torch's LayerNorm would cast a map in half precision to
    float32, and its result back (for the cost see docs/performance.md). This one casts its weights instead; the kernel
    computes in float32 in both cases.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to the same."""
        if x.dtype == self.weight.dtype or x.device.type == "cpu":
            return super().forward(x).to(x.dtype)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with without_autocast(x):
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def add_layer_scale(block: nn.Module, dim: int, value: float | None) -> None:
    """Give a block ``gamma_1`` and ``gamma_2``, learned factors per channel for `scaled`; None makes both None."""
    for name in ("gamma_1", "gamma_2"):
        block.register_parameter(name, None if value is None else nn.Parameter(torch.full((dim,), value)))


def scaled(branch: Tensor, gamma: nn.Parameter | None) -> Tensor:
    """LayerScale of a branch ``[..., C]``; unchanged without `gamma`."""
    return branch if gamma is None else gamma * branch


def pad_to_multiple(x: Tensor, patch_size: int) -> Tensor:
    """Pad an image ``[B, C, H, W]`` with zeros right and bottom to multiples of the patch."""
    h, w = x.shape[-2:]
    # Always while compiling, so that one program serves all sizes. In eager mode, padding by nothing copies the image.
    if torch.compiler.is_compiling() or h % patch_size or w % patch_size:
        right, bottom = ((n + patch_size - 1) // patch_size * patch_size - n for n in (w, h))
        x = F.pad(x, (0, right, 0, bottom))  # [B, C, h*p, w*p]
    return x


# On a CPU, GELU is 5 % of a training step.
RECOMPUTES_ON_CPU = False


class _Gelu(Function):
    """GELU that shares its saved input: `hidden` unpacks it once, as activation checkpointing demands."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, approximate: str) -> Tensor:
        ctx.approximate = approximate
        ctx.save_for_backward(x)
        return F.gelu(x, approximate=approximate)

    @staticmethod
    def hidden(ctx: FunctionCtx) -> Tensor:
        if not hasattr(ctx, "unpacked"):
            (ctx.unpacked,) = ctx.saved_tensors
        return ctx.unpacked

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        x = _Gelu.hidden(ctx)
        del ctx.unpacked
        return torch.ops.aten.gelu_backward(grad, x, approximate=ctx.approximate), None


class Mlp(nn.Module):
    """Linear, GELU, Linear (ViT section 3.1).

    The input of the second layer is the largest tensor of a block. For the backward pass it is not kept but recomputed
    from the GELU's saved input, except on a CPU.

    Args:
        out_dim: Channels of the result; `dim` when None.
        approximate: Approximation of the GELU: ``'none'`` or ``'tanh'``, as in torch.
    """

    def __init__(self, dim: int, hidden_dim: int, out_dim: int | None = None, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, out_dim or dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to ``[..., out_dim]``."""
        x = self.fc1(x)  # [..., hidden_dim]
        # A compiler itself decides what to recompute.
        recomputes = x.device.type != "cpu" or RECOMPUTES_ON_CPU
        if not (recomputes and torch.is_grad_enabled() and x.requires_grad and allows_own_gradients()):
            return self.fc2(F.gelu(x, approximate=self.approximate))  # [..., out_dim]
        active = _Gelu.apply(x, self.approximate)  # [..., hidden_dim]
        storage, node = active.untyped_storage()._cdata, active.grad_fn

        def pack(saved: Tensor) -> Tensor | torch.Size:
            return saved.shape if saved.untyped_storage()._cdata == storage else saved

        def unpack(packed: Tensor | torch.Size) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            return F.gelu(_Gelu.hidden(node), approximate=self.approximate).view(packed)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.fc2(active)  # [..., out_dim]


class SwiGLU(nn.Module):
    """Gated MLP: ``w3(norm(silu(a) * b))``, where a and b are the halves of ``w12(x)`` (Shazeer, 2020).

    Args:
        norm: Makes the norm of the product from its channels (sub-LN, EVA-02 section 2.1); None for no norm.
    """

    def __init__(self, dim: int, hidden_dim: int, norm: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        self.w12 = nn.Linear(dim, 2 * hidden_dim)
        self.norm = norm(hidden_dim) if norm else nn.Identity()
        self.w3 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same."""
        gate, value = self.w12(x).chunk(2, dim=-1)  # [..., hidden_dim] each
        return self.w3(self.norm(F.silu(gate) * value))


# Name -> MLP of a plain ViT's block, from channels, hidden channels and a function that makes a norm.
FFNS: dict[str, Callable[[int, int, Callable], nn.Module]] = {
    "mlp": lambda dim, hidden_dim, norm: Mlp(dim, hidden_dim),
    "mlp_tanh": lambda dim, hidden_dim, norm: Mlp(dim, hidden_dim, approximate="tanh"),
    "swiglu": lambda dim, hidden_dim, norm: SwiGLU(dim, hidden_dim),
    "swiglu_norm": SwiGLU,
}


class LinearNoKeyBias(nn.Linear):
    """Queries, keys and values of tokens with `dim` channels; keys have no bias (EVA-02, DINOv3)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 3 * dim, bias=False)
        self.qv_bias = nn.Parameter(torch.zeros(2 * dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "qv_bias"):  # not yet, while torch's constructor runs
            nn.init.zeros_(self.qv_bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to ``[..., 3 dim]``."""
        q, v = self.qv_bias.chunk(2)  # [dim] each
        return F.linear(x, self.weight, torch.cat([q, zero(q).expand(len(q)), v]))


# Which of queries, keys and values have a bias -> their layer, from the channels.
QKV_LAYERS: dict[str, Callable[[int], nn.Linear]] = {
    "all": lambda dim: nn.Linear(dim, 3 * dim),
    "no_key": LinearNoKeyBias,
    "none": lambda dim: nn.Linear(dim, 3 * dim, bias=False),
}


class PatchEmbed(nn.Module):
    """Non-overlapping patches by a strided convolution, then a norm (Swin section 3.1).

    Args:
        patch_size: Side of a patch in pixels.
        norm: Makes the norm of the tokens from their channels; None for no norm.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int, norm: Callable | None = ResidualLayerNorm) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = norm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Image ``[B, 3, H, W]``, padded right and bottom to whole patches, to ``[B, ceil(H/p), ceil(W/p), C]``."""
        x = self.proj(pad_to_multiple(x, self.patch_size))  # [B, C, h, w]
        return self.norm(x.permute(0, 2, 3, 1))  # [B, h, w, C]


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's SyncBatchNorm; on a CPU, where torch's raises, plain batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, ...]`` to the same."""
        return _BatchNorm.forward(self, x) if x.device.type == "cpu" else super().forward(x)


def max_pool(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """Max pooling of ``[B, C, H, W]`` to ``[B, C, ceil(H / stride), ceil(W / stride)]``.

    While compiling, the map is padded first, because torch's `ceil_mode` is compiled for one parity of the sizes. In
    eager mode that would copy the map.
    """
    if not torch.compiler.is_compiling():
        return F.max_pool2d(x, kernel, stride, padding, ceil_mode=padding == 0)  # [B, C, h, w]
    h, w = x.shape[-2:]
    right, bottom = ((n + stride - 1) // stride * stride - stride + kernel - padding - n for n in (w, h))
    return F.max_pool2d(F.pad(x, (padding, right, padding, bottom), value=-math.inf), kernel, stride)  # [B, C, h, w]


class OverlapPatchEmbed(nn.Module):
    """Patches of 7x7 pixels every 4, without a norm (MViTv2 appendix, "patch embedding")."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, 7, stride=4, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        """Image ``[B, 3, H, W]`` to ``[B, ceil(H/4), ceil(W/4), C]``."""
        return self.proj(x).permute(0, 2, 3, 1)  # [B, h, w, C]


def merge_2x2(x: Tensor) -> Tensor:
    """Space to depth: ``[B, H, W, C]``, padded right and bottom to even sizes, to ``[B, ceil(H/2), ceil(W/2), 4 C]``.

    Neighbours are in the authors' order of (row, column): (0, 0), (1, 0), (0, 1), (1, 1).
    """
    b, h, w, c = x.shape
    half_h, half_w = (h + 1) // 2, (w + 1) // 2
    if torch.compiler.is_compiling() or h % 2 or w % 2:  # see `pad_to_multiple`
        x = F.pad(x, (0, 0, 0, 2 * half_w - w, 0, 2 * half_h - h))
    x = x.reshape(b, half_h, 2, half_w, 2, c)  # [B, h, 2 rows, w, 2 columns, C]
    return x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # [B, h, w, 4*C]


class PatchMerging(nn.Module):
    """Halve the map and double the channels: space to depth, LayerNorm, Linear (Swin section 3.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]``, padded right and bottom to even sizes, to ``[B, ceil(H/2), ceil(W/2), 2 C]``."""
        return self.reduction(self.norm(merge_2x2(x)))  # [B, h, w, 2*C]


class PostNormMerging(nn.Module):
    """As `PatchMerging`, but the LayerNorm comes after the Linear: Swin V2's residual post-norm (section 3.2)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.norm = ResidualLayerNorm(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, H, W, C]``, padded right and bottom to even sizes, to ``[B, ceil(H/2), ceil(W/2), 2 C]``."""
        return self.norm(self.reduction(merge_2x2(x)))  # [B, h, w, 2*C]
