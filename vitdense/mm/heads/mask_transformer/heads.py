"""EoMT and PMT as heads of mmdet, with the losses, matching and targets of its Mask2Former."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.losses import CrossEntropyLoss, DiceLoss
from mmdet.models.task_modules import HungarianAssigner, MaskPseudoSampler
from mmdet.utils import reduce_mean
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from torch import Tensor, nn

from vitdense.checkpoint.errors import naming_option
from vitdense.checkpoint.load import load_pretrained
from vitdense.layers.blocks import LayerNorm, SyncBatchNorm, init_transformer
from vitdense.layers.layout import without_autocast
from vitdense.layers.mask_attention import MaskPredictor, Prediction, decode
from vitdense.layers.rope import Rope
from vitdense.mm.registry import MODELS
from vitdense.models.vit.model import BlockSpec, ViTBlock
from vitdense.models.vit.sizes import ViTArch
from vitdense.models.vit.tokens import Joint, Tokens

NO_OBJECT = 0.1  # weight of the class "no object"
CLASS, MASK, DICE = 2.0, 5.0, 5.0  # weights of the losses, and of the costs of matching
COSTS = [
    {"type": "mmdet.ClassificationCost", "weight": CLASS},
    {"type": "mmdet.CrossEntropyLossCost", "weight": MASK, "use_sigmoid": True},
    {"type": "mmdet.DiceCost", "weight": DICE, "pred_act": True, "eps": 1.0},
]


class ClassLoss(CrossEntropyLoss):
    """mmdet's cross entropy, normalised over all processes, so that gradients equal one process with all images."""

    def forward(self, pred: Tensor, target: Tensor, weight: Tensor, avg_factor: Tensor) -> Tensor:
        """Logits ``[N, classes]`` and labels, weights ``[N]``."""
        return super().forward(pred, target, weight, avg_factor=reduce_mean(avg_factor))


class MaskTransformerHead(Mask2FormerHead):
    """Queries that attend together with the tokens of a plain ViT, as a head for mmdet's `Mask2Former`.

    In training it predicts before each block and after the last, with masked attention; otherwise once, without masks.
    `MaskAnnealingHook` phases masked attention out during a training.

    Args:
        in_channels: Channels of the maps, all equal.
        num_things_classes, num_stuff_classes: Classes of things, the first labels, and of stuff.
        num_queries: Q; the authors use 200, and 100 for semantic segmentation.
        num_blocks: Blocks in which queries take part.
        patch_size: Side of the trunk's patches, in pixels.
        train_cfg: ``num_points`` at which masks are compared (default 12544).
        test_cfg: For the fusion head.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)`` loads a file with the head alone, exactly.
    """

    family: str  # of naming schemes

    def __init__(
        self,
        in_channels: Sequence[int],
        num_things_classes: int = 80,
        num_stuff_classes: int = 53,
        num_queries: int = 200,
        num_blocks: int = 4,
        patch_size: int = 16,
        train_cfg: dict | None = None,
        test_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        BaseModule.__init__(self, init_cfg)  # mmdet's would make a pixel decoder
        self.num_things_classes, self.num_stuff_classes = num_things_classes, num_stuff_classes
        self.num_classes, self.num_queries = num_things_classes + num_stuff_classes, num_queries
        self.train_cfg, self.test_cfg = train_cfg, test_cfg
        self.predictor = MaskPredictor(in_channels[0], num_queries, self.num_classes, patch_size)
        self.register_buffer("mask_probabilities", torch.ones(num_blocks))
        self.assigner, self.sampler = HungarianAssigner(COSTS), MaskPseudoSampler()
        self.num_points = (train_cfg or {}).get("num_points", 12544)
        self.oversample_ratio, self.importance_sample_ratio = 3.0, 0.75
        self.class_weight = [1.0] * self.num_classes + [NO_OBJECT]
        self.loss_cls = ClassLoss(class_weight=self.class_weight, loss_weight=CLASS)
        self.loss_mask = CrossEntropyLoss(use_sigmoid=True, loss_weight=MASK)
        self.loss_dice = DiceLoss(naive_dice=True, eps=1.0, loss_weight=DICE)

    def init_weights(self) -> None:
        """Load the file of `init_cfg` exactly, see `load_pretrained`; without one keep the constructor's weights."""
        if self.init_cfg and not self.is_init:
            options = {key: value for key, value in self.init_cfg.items() if key != "type"}
            with naming_option("init_cfg.checkpoint of the head"):
                report = load_pretrained(self, **options)
            MMLogger.get_current_instance().info(f"{type(self).__name__}: {report}")
        self._is_init = True

    def forward(
        self, x: Sequence[Tokens | Joint], batch_data_samples: Sequence | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of the trunk to two lists: class logits ``[B, Q, classes + 1]`` and mask logits
        ``[B, Q, H/4, W/4]`` of every prediction."""
        found = self.predict_all(x, self.mask_probabilities if self.training else None)
        return [one.classes for one in found], [one.masks for one in found]

    def predict_all(self, x: Sequence[Tokens | Joint], probabilities: Tensor | None) -> list[Prediction]:
        raise NotImplementedError  # see `decode`

    def loss_by_feat(self, all_cls_scores: list[Tensor], all_mask_preds: list[Tensor], *others: Any) -> dict:
        """mmdet's losses in float32: sums over points exceed float16."""
        with without_autocast(all_cls_scores[0]):
            scores, masks = ([x.float() for x in logits] for logits in (all_cls_scores, all_mask_preds))
            return super().loss_by_feat(scores, masks, *others)


@MODELS.register_module()
class EoMTHead(MaskTransformerHead):
    """Encoder-only mask transformer (Kerssies et al., CVPR 2025) on a `JointViT`.

    The last blocks and the last norm of the trunk are the decoder. For arguments see `MaskTransformerHead`.
    """

    family = "eomt"

    def predict_all(self, x: Sequence[Joint], probabilities: Tensor | None) -> list[Prediction]:
        of_map, prefix, join, norm = x[-1]
        size = (of_map.shape[2], of_map.shape[3])
        tokens = self.predictor.with_queries(torch.cat([prefix, of_map.flatten(2).mT], dim=1))  # [B, Q + E + h*w, C]

        def predict(x: Tensor) -> Prediction:
            return self.predictor(norm(x), size)

        return decode(tokens, size, join(self.num_queries), predict, probabilities)


class Lateral(nn.Module):
    """A tap of a frozen trunk: batch norm over all tokens, a residual MLP of half the width, a factor per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn = SyncBatchNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim))
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, C]`` to the same."""
        x = self.bn(x.mT).mT  # [B, N, C]
        return (x + self.mlp(x)) * self.scale


@MODELS.register_module()
class PMTHead(MaskTransformerHead):
    """Plain mask transformer (arXiv 2603.25398): six blocks of its own on the sum of taps of a frozen `TokenViT`.

    Several such heads can read one pass of a trunk.

    Args:
        in_channels: Channels of the taps.
        num_heads: Attention heads.
        **options: See `MaskTransformerHead`.
    """

    family = "pmt"

    def __init__(self, in_channels: Sequence[int], num_heads: int, num_blocks: int = 6, **options: Any) -> None:
        super().__init__(in_channels, num_blocks=num_blocks, **options)
        dim = in_channels[0]
        arch = ViTArch(
            dim, num_blocks, num_heads, layer_scale=1.0, norm_eps=1e-5, rope="dinov3", qkv_bias="no_key", ffn_dims=dim
        )
        self.laterals = nn.ModuleList(Lateral(dim) for _ in in_channels)
        self.rope = Rope(arch.rope, dim // num_heads)
        self.blocks = nn.ModuleList(ViTBlock(BlockSpec(arch), mlp_ratio=1.0) for _ in range(num_blocks))
        self.norm = LayerNorm(dim, eps=arch.norm_eps)
        self.blocks.apply(init_transformer)

    def predict_all(self, x: Sequence[Tokens], probabilities: Tensor | None) -> list[Prediction]:
        of_map = x[0].map
        size = (of_map.shape[2], of_map.shape[3])
        taps = [torch.cat([prefix, maps.flatten(2).mT], dim=1) for maps, prefix in x]  # [B, E + h*w, C]
        tokens = sum(lateral(tap) for lateral, tap in zip(self.laterals, taps))  # [B, E + h*w, C]
        num_extra = self.num_queries + x[0].prefix.shape[1]
        rotation = self.rope(of_map.permute(0, 2, 3, 1), None, num_extra)

        def step(block: ViTBlock, x: Tensor, mask: Tensor | None) -> Tensor:
            return block(x, size, None, rotation, mask)

        def predict(x: Tensor) -> Prediction:
            return self.predictor(self.norm(x), size)

        steps = [partial(step, block) for block in self.blocks]
        return decode(self.predictor.with_queries(tokens), size, steps, predict, probabilities)
