"""Plain vision transformers for dense prediction.

ViT (Dosovitskiy et al., ICLR 2021), DeiT (Touvron et al., ICML 2021) and DeiT III (Touvron et al., ECCV 2022), with
windows as in ViTDet (Li et al., ECCV 2022). DINOv2 (Oquab et al., 2023), DINOv3 (Simeoni et al., 2025) and EVA-02
(Fang et al., 2023) are rows with other parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from vitdense.errors import OptionError, check_choice
from vitdense.families import find_arch
from vitdense.layers import blocks
from vitdense.layers.attention import attend_decomposed, attend_windows
from vitdense.layers.bias import DecomposedBias
from vitdense.layers.blocks import FFNS, QKV_LAYERS, DropPath, PatchEmbed, add_layer_scale, init_transformer, scaled
from vitdense.layers.layout import Windows, compute_dtype, window_layout
from vitdense.layers.position import POSITION_RULES, AbsolutePosition, ExtraTokens
from vitdense.layers.rope import ROPES, Rope, Rotation, attend_rotated
from vitdense.models.base import Backbone, as_pair, drop_path_rates, maybe_checkpoint
from vitdense.models.vit.sizes import VIT, ViTArch

LayerNorm = partial(blocks.LayerNorm, eps=1e-6)
JointStep = Callable[[Tensor, Tensor | None], Tensor]
OUT_NORMS = ("each", "final", "shared", "none")
WINDOW_PADDINGS = ("tokens", "qkv")


@dataclass(frozen=True)
class BlockSpec:
    """One block. Window and grid are (h, w) in tokens."""

    arch: ViTArch  # sizes and parts
    window: tuple[int, int] | None = None  # None attends globally
    table: tuple[int, int] | None = None  # grid of its relative positions; None for none
    drop_path: float = 0.0  # stochastic depth
    pads_qkv: bool = False  # whether windows are padded after qkv, not before


def default_out_indices(depth: int) -> tuple[int, ...]:
    """The last block of every quarter: ViTDet's global blocks, and the usual outputs of a plain ViT."""
    return tuple(dict.fromkeys(max(depth * quarter // 4, 1) - 1 for quarter in (1, 2, 3, 4)))


def plan(
    arch: ViTArch,
    window: tuple[int, int] | None,
    global_indices: Sequence[int],
    table: tuple[int, int] | None,
    drop_path_rate: float,
    pads_qkv: bool = False,
) -> list[BlockSpec]:
    """Every block of a ViT in order.

    Args:
        window: Window of all blocks but `global_indices`; None for global attention everywhere.
        table: Grid of the relative positions of blocks without windows (the others have the grid of their window); None
            for no relative positions.
        drop_path_rate: Rate of the last block, linear from 0, or of all blocks (`ViTArch.constant_drop_path`).
    """
    windows = [None if i in global_indices else window for i in range(arch.depth)]
    rates = drop_path_rates(drop_path_rate, arch.depth)
    if arch.constant_drop_path:
        rates = [drop_path_rate] * arch.depth
    return [
        BlockSpec(arch, of_block, table and (of_block or table), rate, pads_qkv)
        for of_block, rate in zip(windows, rates)
    ]


class ZeroBias(DecomposedBias):
    """Relative positions that start at zero, as in ViTDet, so that a model pretrained without them is unchanged."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for table in self.parameters():
            nn.init.zeros_(table)


class Attention(nn.Module):
    """Multi-head self-attention (ViT section 3.1), within windows if the block has a window (ViTDet section 3)."""

    attends_over = "BNC"

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        dim, self.num_heads = spec.arch.embed_dims, spec.arch.num_heads
        self.window, self.pads_qkv = spec.window, spec.pads_qkv
        self.qkv = QKV_LAYERS[spec.arch.qkv_bias](dim)
        self.bias = ZeroBias(spec.table, dim // self.num_heads) if spec.table else None
        self.proj = nn.Linear(dim, dim)

    def forward(
        self,
        x: Tensor,
        size: tuple[int, int],
        windows: Windows | None,
        rotation: Rotation | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend among all tokens, or within the windows of the map: ``[B, N, C]`` to the same.

        Args:
            x: ``[B, N, C]``: with windows or relative positions N is h * w, row-major.
            size: Map (h, w) in tokens.
            windows: Partition of the map; None for global attention. Padding comes before qkv: a padded token's key and
                value are the bias, and other tokens see it, as in the authors' code. With `BlockSpec.pads_qkv` they are
                zero, and seen as well.
            rotation: Rotary positions of the tokens; None for none.
            mask: Which pairs may attend, bool ``[B, 1, N, N]``; None for all. Only without windows and relative
                positions.
        """
        if windows is not None and not self.pads_qkv:
            x = windows.partition(x.to(compute_dtype(x)).unflatten(1, size))  # [B*nW, n, C]
        qkv = self.qkv(x)  # [B, N, 3*C] or [B*nW, n, 3*C]
        if windows is not None and self.pads_qkv:
            qkv = windows.partition(qkv.unflatten(1, size))  # [B*nW, n, 3*C]
        qkv = qkv.unflatten(-1, (3, self.num_heads, -1))  # [B, N, 3, heads, d]
        if rotation is not None:
            y = attend_rotated(qkv, rotation, mask)  # [B, N, C]
        else:
            y = self.attend(qkv, self.window or size) if mask is None else attend_windows(qkv, mask)  # [B, N, C]
        # Windows of 14 have much padding, a fifth of the tokens at 1024 pixels; it is dropped before the projection.
        return self.proj(y if windows is None else windows.unpartition(y).flatten(1, 2))  # [B, N, C]

    def attend(self, qkv: Tensor, grid: tuple[int, int]) -> Tensor:
        """``[B, N, 3, heads, d]`` to ``[B, N, C]``; with relative positions the N tokens are a map or window (h, w)."""
        if self.bias is None:
            return attend_windows(qkv, None)  # [B, N, C]
        q, k, v = qkv.unbind(2)  # [B, N, heads, d] each
        return attend_decomposed(q.unflatten(1, grid), k, v, self.bias, grid)  # [B, N, C]


class ViTBlock(nn.Module):
    """Attention, then an MLP, each on a normalised branch (ViT section 3.1), optionally with LayerScale.

    The MLP is `mlp_ratio` times as wide as its input if the arch has no `ffn_dims`.
    """

    attention: type[Attention] = Attention  # variants have another

    def __init__(self, spec: BlockSpec, mlp_ratio: float) -> None:
        super().__init__()
        self.spec = spec
        arch, dim = spec.arch, spec.arch.embed_dims
        norm = partial(blocks.LayerNorm, eps=arch.norm_eps)
        self.norm1 = norm(dim)
        self.attn = self.attention(spec)
        self.norm2 = norm(dim)
        self.mlp = FFNS[arch.ffn](dim, arch.ffn_dims or int(dim * mlp_ratio), norm)
        add_layer_scale(self, dim, arch.layer_scale)
        self.drop_path = DropPath(spec.drop_path) if spec.drop_path else nn.Identity()

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        """``[B, N, C]`` to the same; `args` are the arguments of `Attention` after the tokens."""
        x = x + self.drop_path(scaled(self.attn(self.norm1(x), *args), self.gamma_1))
        return x + self.drop_path(scaled(self.mlp(self.norm2(x)), self.gamma_2))


class ViT(Backbone):
    """ViT, DeiT, DINOv2, DINOv3, EVA-02 and other plain ViTs: maps of one stride, the side of a patch.

    An image of any size is padded right and bottom to whole patches; position embeddings are resized to the map. Class
    token and registers take part in attention, but not in the maps. With windows or relative positions (as in ViTDet)
    there are none: the tokens of a checkpoint are ignored. Arguments not listed here: see `Backbone`.

    Variants are classes with another stem, position or block: see `make_stem`, `make_position`, `block` and `archs`.

    Args:
        arch: A row of `sizes.VIT`: ``'vit_'`` or ``'deit_'`` and a size (``'deit_small'``; of DeiT also with
            ``'_distilled'``), ``'deit3_'``, ``'dinov2_'`` (also with ``'_reg'``), ``'dinov3_'``,
            ``'cradio_'``, ``'eva02_'``, ``'pe_spatial_'``, ``'siglip2_'``, ``'lingbot_giant'``; or a dict of the fields
            of `ViTArch`.
        patch_size: Patch side and stride in pixels; the arch's when None (16; 14 for huge, DINOv2 and EVA-02).
        window_size: Window in tokens, one int or (h, w), of all blocks but `global_indices`; None attends globally
            everywhere. ViTDet: 14.
        global_indices: Blocks without windows; the last of every quarter when None, as ViTDet.
        window_padding: What is padded to whole windows: ``'tokens'``, before qkv, as in ViTDet; or ``'qkv'``, after it,
            as in ViT-Adapter.
        relative_position: Whether attention has decomposed relative positions, as ViTDet.
        img_size: Image size in pixels, one int or (h, w), of training: the relative positions of global blocks have
            its grid. For other images the tables are resized.
        mlp_ratio: See `Backbone`; only for an arch without `ffn_dims`.
        rope_augment: Random changes of DINOv3's rotary positions in training, for example ``dict(rescale=2.0)``, with
            which it was pretrained; see `Rope`. None, and a frozen stem, change nothing.
        drop_path_rate: See `Backbone`; in DeiT III all blocks have this rate.
        pretrain_img_size: Image size of pretraining in pixels, one int or (h, w), for the position embeddings.
        out_indices: Blocks whose maps to return, counted from 0; when None the arch's `taps`, or the last of every
            quarter.
        out_norm: ``'each'``: a new LayerNorm for every output, which no classifier's checkpoint has; ``'final'``: the
            checkpoint's own norm on the last block's map, no norm on other outputs; ``'shared'``: that norm on every
            output, as DINOv2 and DINOv3 are evaluated; ``'none'``.
        output_cls_token: Return ``(map, class token[, distillation token])`` in place of every map, tokens
            ``[B, C]`` under the same norm.
        class_token: False for a model without class token, distillation token and registers also with global attention;
            the tokens of a checkpoint are ignored.
        frozen_stages: See `Backbone`; the stem is patch embedding, tokens and positions, a stage is a block.
    """

    family = "vit"
    archs: Mapping[str, ViTArch] = VIT
    block: Callable[[BlockSpec, float], ViTBlock] = ViTBlock

    def __init__(
        self,
        arch: str | Mapping = "deit_small",
        *,
        patch_size: int | None = None,
        window_size: int | Sequence[int] | None = None,
        global_indices: Sequence[int] | None = None,
        window_padding: str = "tokens",
        relative_position: bool = False,
        img_size: int | Sequence[int] = 1024,
        mlp_ratio: float = 4.0,
        rope_augment: Mapping[str, float] | None = None,
        drop_path_rate: float = 0.1,
        pretrain_img_size: int | Sequence[int] = 224,
        out_indices: Sequence[int] | None = None,
        out_norm: str = "each",
        output_cls_token: bool = False,
        class_token: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(drop_path_rate=drop_path_rate, out_indices=out_indices, **common)
        row = find_arch(arch, self.archs)
        if patch_size is not None:
            row = replace(row, patch_size=patch_size)
        if not class_token:
            row = replace(row, class_token=False, distilled=False, registers=0)
        self.arch = row
        patch, depth, dim = row.patch_size, row.depth, row.embed_dims
        quarters = default_out_indices(depth)
        window = None if window_size is None else as_pair(window_size, "window_size")
        has_tokens = row.class_token and window is None and not relative_position
        for name, got, known in (
            ("arch: position_rule", row.position_rule, POSITION_RULES),
            ("arch: rope", row.rope, (None, *ROPES)),
            ("arch: qkv_bias", row.qkv_bias, QKV_LAYERS),
            ("arch: ffn", row.ffn, FFNS),
            ("window_padding", window_padding, WINDOW_PADDINGS),
            ("out_norm", out_norm, OUT_NORMS),
        ):
            check_choice(name, got, known)
        # Options that would silently have no effect.
        for name, is_unused, missing in (
            ("global_indices", global_indices is not None and window is None, "a window_size"),
            ("window_padding", window_padding == "qkv" and window is None, "a window_size"),
            ("output_cls_token", output_cls_token and not has_tokens, "global attention and a class_token"),
            ("relative_position", relative_position and row.rope, "an arch without rope"),
            ("rope_augment", rope_augment and not row.rope, "an arch with rope"),
            ("mlp_ratio", mlp_ratio != 4.0 and row.ffn_dims, "an arch without ffn_dims"),
        ):
            if is_unused:
                raise OptionError(f"{name}: it needs {missing}; leave it out")
        if wrong := [i for i in global_indices or () if not 0 <= i < depth]:
            raise OptionError(f"global_indices: got {wrong}, expected blocks from 0 to {depth - 1}")
        self.output_cls_token = output_cls_token

        def grid(image: int | Sequence[int], name: str) -> tuple[int, int]:
            h, w = as_pair(image, name)
            if h < patch or w < patch:
                raise OptionError(f"{name}: got {h}x{w}, expected at least one patch of {patch} pixels")
            return h // patch, w // patch

        self.patch_embed = self.make_stem(self.in_channels)
        self.absolute_pos_embed = self.make_position(grid(pretrain_img_size, "pretrain_img_size"))
        token_position = row.token_position and isinstance(self.absolute_pos_embed, AbsolutePosition)
        self.tokens = ExtraTokens(dim, row.distilled, token_position, row.registers) if has_tokens else None
        self.rope = Rope(row.rope, dim // row.num_heads, rope_augment) if row.rope else None
        norm = partial(blocks.LayerNorm, eps=row.norm_eps)
        self.norm_pre = norm(dim) if row.pre_norm else None
        table = grid(img_size, "img_size") if relative_position else None
        global_blocks = quarters if global_indices is None else global_indices
        specs = plan(row, window, global_blocks, table, drop_path_rate, window_padding == "qkv")
        self.blocks = nn.ModuleList(self.block(spec, mlp_ratio) for spec in specs)
        self.out_norm = out_norm
        self.norm = norm(dim) if out_norm in ("final", "shared") else None
        self.apply(init_transformer)
        self.out_indices = row.taps or quarters if out_indices is None else out_indices
        of_output = norm if out_norm == "each" else lambda dim: nn.Identity()
        self.build_outputs_and_freeze([dim] * depth, [patch] * depth, of_output)
        if out_norm == "final" and self.out_indices[-1] != depth - 1:
            raise OptionError(f"out_norm='final': got out_indices {self.out_indices}, expected the last, {depth - 1}")

    def make_stem(self, in_channels: int) -> nn.Module:
        """Makes patches ``[B, ceil(H/p), ceil(W/p), C]`` of images ``[B, in_channels, H, W]``."""
        return PatchEmbed(in_channels, self.arch.embed_dims, self.arch.patch_size, norm=None)

    def make_position(self, grid: tuple[int, int]) -> nn.Module:
        """Adds positions of the pretraining grid (h, w) to patches ``[B, H, W, C]``."""
        arch = self.arch
        return AbsolutePosition(grid, arch.embed_dims, arch.position_rule) if arch.absolute_position else nn.Identity()

    def stem_modules(self) -> list[nn.Module]:
        others = [module for module in (self.tokens, self.rope, self.norm_pre) if module is not None]
        return [self.patch_embed, self.absolute_pos_embed, *others]

    def stage_modules(self) -> nn.ModuleList:
        return self.blocks

    def frozen_modules(self) -> list[nn.Module]:
        is_last = self.norm is not None and self.frozen_stages == len(self.blocks)
        return [*super().frozen_modules(), *([self.norm] if is_last else [])]

    def output_norm(self, stage: int) -> nn.Module:
        is_shared = self.norm is not None and (self.out_norm == "shared" or stage == len(self.blocks) - 1)
        return self.norm if is_shared else super().output_norm(stage)

    def unroll(self, x: Tensor) -> tuple[Tensor, tuple[int, int], list[Callable[[Tensor], Tensor]]]:
        """A forward pass of patches ``[B, h, w, C]`` in steps, for a model that does something between blocks.

        Returns tokens ``[B, E + h*w, C]`` before the first block, E extra ones first; the map (h, w); every block up to
        the last output as a function from tokens to tokens.
        """
        x = self.absolute_pos_embed(x)  # [B, h, w, C]
        size, with_cp = (x.shape[1], x.shape[2]), self.with_cp and self.training
        used = [*self.blocks][: self.out_indices[-1] + 1]  # no slice of a ModuleList, of other names in programs
        layouts = {window: self.layout(x, window) for window in dict.fromkeys(block.spec.window for block in used)}

        def step(block: ViTBlock, x: Tensor) -> Tensor:
            return maybe_checkpoint(block, x, size, *layouts[block.spec.window], with_cp=with_cp)

        x = self.prepare_tokens(x.flatten(1, 2))  # [B, E + h*w, C]
        return x, size, [partial(step, block) for block in used]

    def join(self, x: Tensor, size: tuple[int, int], num_blocks: int, num_queries: int) -> list[JointStep]:
        """The last blocks for tokens with queries before all others, as in EoMT (Kerssies et al., CVPR 2025).

        Queries have no positions; blocks with windows or relative positions are refused.

        Args:
            x, size: Tokens ``[B, E + h*w, C]`` and the map (h, w) of `unroll`, for shape, device and dtype.
            num_blocks: Number of blocks up to the last output.
            num_queries: Tokens Q before the class token.

        Returns:
            Every block as a function from tokens ``[B, Q + E + h*w, C]`` and a mask of pairs, or None, to tokens; see
            `Attention`.
        """
        blocks = [*self.blocks][: self.out_indices[-1] + 1][-num_blocks:]
        if any(block.spec.window or block.spec.table for block in blocks):
            raise OptionError("window_size, relative_position: queries need global attention; leave them out")
        num_extra = num_queries + (0 if self.tokens is None else len(self.tokens))
        of_map = x[:, -size[0] * size[1] :].unflatten(1, size)  # [B, h, w, C]
        rotation = None if self.rope is None else self.rope(of_map, None, num_extra)
        with_cp = self.with_cp and self.training

        def step(block: ViTBlock, x: Tensor, mask: Tensor | None) -> Tensor:
            return maybe_checkpoint(block, x, size, None, rotation, mask, with_cp=with_cp)

        return [partial(step, block) for block in blocks]

    def prepare_tokens(self, x: Tensor) -> Tensor:
        """Patches ``[B, n, C]`` with the extra tokens before them, normalised by `norm_pre`: ``[B, E + n, C]``."""
        x = x.contiguous() if self.tokens is None else self.tokens(x)  # [B, E + n, C]
        return x if self.norm_pre is None else self.norm_pre(x)

    def layout(self, x: Tensor, window: tuple[int, int] | None) -> tuple[Windows | None, Rotation | None]:
        """The partition and the rotary positions of a map ``[B, h, w, C]``, for blocks with this window."""
        num_extra = 0 if self.tokens is None else len(self.tokens)
        windows = None if window is None else window_layout(x, window)
        return windows, None if self.rope is None else self.rope(x, window, num_extra)

    def to_feature_map(self, x: Tensor, size: tuple[int, int], index: int) -> Tensor | tuple[Tensor, ...]:
        """Map ``[B, C, h, w]`` of tokens ``[B, E + h*w, C]``; with `output_cls_token` also T of them, no registers."""
        extra = 0 if self.tokens is None else len(self.tokens)
        out = self.output(x[:, extra:].unflatten(1, size), index)  # [B, C, h, w]
        if not self.output_cls_token:
            return out
        return out, *self.output_norm(index)(x[:, : len(self.tokens.names)]).unbind(1)  # T of [B, C]
