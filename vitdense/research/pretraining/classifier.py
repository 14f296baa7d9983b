"""Classification with a teacher: the training objective of DeiT (Touvron et al., ICML 2021, sections 4 and 5.2)."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from vitdense import ViT
from vitdense.errors import OptionError, check_choice
from vitdense.mm.registry import MODELS
from vitdense.research.pretraining.teacher import ModelWithTeacher, Teacher


def soft_distillation(logits: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """``tau^2 KL(teacher || student)`` of logits ``[B, K]`` at temperature `tau`, averaged over the batch (equation 2).

    The paper prints the student first; the authors' code has this direction.
    """
    student, target = (F.log_softmax(x / tau, dim=1) for x in (logits, teacher))  # [B, K] each
    return tau**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)


DISTILLATION: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "hard": lambda logits, teacher, tau: F.cross_entropy(logits, teacher.argmax(1)),  # equation 3, not smoothed
    "soft": soft_distillation,
    # The authors' code averages over the classes too: a thousandth of the formula on ImageNet.
    "soft_mean": lambda logits, teacher, tau: soft_distillation(logits, teacher, tau) / logits.shape[1],
}
# Class probabilities from the logits of the class token and, last, of the distillation token.
PREDICTIONS: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "softmax": lambda logits: torch.stack([x.softmax(1) for x in logits]).mean(0),  # the paper's, section 4
    "logits": lambda logits: torch.stack(tuple(logits)).mean(0).softmax(1),  # the authors' code
    "class": lambda logits: logits[0].softmax(1),
    "distillation": lambda logits: logits[-1].softmax(1),
}


@MODELS.register_module()
class Classifier(ModelWithTeacher):
    """A ViT that learns to classify, from labels and from a teacher.

    ``(1 - alpha) * base(class token, label) + alpha * distillation(distillation token, teacher)``. Both heads are
    linear. A ViT without distillation token learns both from its class token ("usual distillation", Table 3). The
    teacher sees the same augmented, mixed images. Checkpoints are read by the `init_cfg` of any ViT.

    Args:
        backbone: Config of a ``vitdense.ViT`` with ``out_norm='final'``, ``output_cls_token=True`` and the last block
            as its one output. With ``keep_classifier=True`` in its `init_cfg` the heads are loaded too.
        num_classes: Classes of both heads and of the teacher.
        distillation: ``'hard'``, ``'soft'``, ``'soft_mean'`` (the authors' code), or None.
        alpha: Weight of the distillation. With 1 no labels are needed, and if there is a distillation token, the head
            of the class token is frozen. The paper's soft distillation has 0.1.
        tau: Temperature of soft distillation, 3 in the paper.
        base: ``'ce'``, or ``'bce'`` as DeiT III: every class whose target is above 0 is a positive.
        label_smoothing: Smoothing of the labels, for ``'ce'``.
        mixup: Arguments of `timm.data.Mixup`, such as ``dict(mixup_alpha=0.8, cutmix_alpha=1.0)``, or None. Batches
            are even then.
        prediction: ``'softmax'`` averages the class probabilities of both heads, ``'logits'`` their logits; ``'class'``
            and ``'distillation'`` take one head.
        teacher, mean, std, data_preprocessor, init_cfg: See `ModelWithTeacher`.

    Raises:
        ValueError: An unknown name, a teacher without distillation or distillation without a teacher, or a backbone
            without a class token.
    """

    def __init__(
        self,
        backbone: Mapping | nn.Module,
        num_classes: int = 1000,
        distillation: str | None = None,
        alpha: float = 0.5,
        tau: float = 1.0,
        base: str = "ce",
        label_smoothing: float = 0.1,
        mixup: Mapping | None = None,
        prediction: str = "softmax",
        teacher: Teacher | Mapping | None = None,
        **options: object,
    ) -> None:
        super().__init__(backbone, teacher, **options)
        check_choice("distillation", distillation, (None, *DISTILLATION))
        check_choice("base", base, ("ce", "bce"))
        check_choice("prediction", prediction, PREDICTIONS)
        if (teacher is None) != (distillation is None):
            raise OptionError(f"distillation: got {distillation!r} with teacher={teacher!r}; give both or neither")
        self.distillation, self.alpha, self.tau = distillation, alpha if distillation else 0.0, tau
        self.base, self.prediction = base, prediction
        self.label_smoothing = label_smoothing if base == "ce" else 0.0
        self.mixup = None
        if mixup:
            from timm.data import Mixup

            self.mixup = Mixup(**mixup, label_smoothing=self.label_smoothing, num_classes=num_classes)
        if not (isinstance(self.backbone, ViT) and self.backbone.output_cls_token and self.backbone.norm is not None):
            raise OptionError("backbone: expected a vitdense.ViT with out_norm='final' and output_cls_token=True")
        self.num_classes = num_classes
        dim = self.backbone.out_channels[-1]
        self.head = nn.Linear(dim, num_classes)
        self.head_dist = nn.Linear(dim, num_classes) if self.backbone.arch.distilled else None
        for head in self.heads:
            trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        if self.alpha == 1 and self.head_dist is not None:
            self.head.requires_grad_(False)

    @property
    def heads(self) -> list[nn.Linear]:
        """Logits of the class token and, if there is one, of the distillation token."""
        return [head for head in (self.head, self.head_dist) if head is not None]

    def init_weights(self) -> None:
        """Initialise, and copy the heads that ``keep_classifier`` has read."""
        super().init_weights()
        classifier = getattr(self.backbone.load_report, "classifier", {})
        for name, head in zip(("head", "head_dist"), self.heads):
            state = {key.removeprefix(f"{name}."): x for key, x in classifier.items() if key.startswith(f"{name}.")}
            if state:
                head.load_state_dict(state)

    def forward(
        self, inputs: Tensor, data_samples: Sequence[BaseDataElement] | None = None, mode: str = "tensor"
    ) -> tuple[Tensor, ...] | dict[str, Tensor] | list[BaseDataElement] | Tensor:
        """Classify normalised images.

        Args:
            inputs: ``[B, 3, H, W]``.
            data_samples: One per image, with `gt_label`, an int. Not needed by ``mode='tensor'``, nor with `alpha` 1.
            mode: ``'loss'``; ``'predict'`` sets `pred_scores` ``[K]`` and `pred_label` of the samples; ``'tensor'``
                gives the mean logits ``[B, K]``.
        """
        if mode == "loss":
            return self.loss(inputs, data_samples)
        logits = self.logits(inputs)
        if mode == "tensor":
            return torch.stack(logits).mean(0)  # [B, K]
        for sample, scores in zip(data_samples, PREDICTIONS[self.prediction](logits)):
            sample.pred_scores, sample.pred_label = scores, int(scores.argmax())
        return list(data_samples)

    def logits(self, inputs: Tensor) -> list[Tensor]:
        """Logits ``[B, K]`` of the class token and, if there is one, of the distillation token."""
        _, *tokens = self.backbone(inputs)[-1]  # [B, C] each
        return [head(token) for head, token in zip(self.heads, tokens, strict=True)]

    def loss(self, inputs: Tensor, data_samples: Sequence[BaseDataElement] | None) -> dict[str, Tensor]:
        """``loss_class`` and ``loss_distillation``; see the class."""
        losses = {}
        labels = [sample.gt_label for sample in data_samples] if self.alpha < 1 else [0] * len(inputs)
        targets = torch.tensor(labels, device=inputs.device)  # [B]
        if self.mixup is not None:
            inputs, targets = self.mixup(inputs.clone(), targets)  # [B, 3, H, W], [B, K]
        logits = self.logits(inputs)
        if self.alpha < 1:
            losses["loss_class"] = (1 - self.alpha) * self.base_loss(logits[0], targets)
        if self.distillation is not None:
            teacher = self.teacher(self.raw(inputs))  # [B, K]
            if teacher.shape != logits[-1].shape:
                raise OptionError(f"teacher: got {teacher.shape[1]} classes, expected num_classes={self.num_classes}")
            losses["loss_distillation"] = self.alpha * DISTILLATION[self.distillation](logits[-1], teacher, self.tau)
        return losses

    def base_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits ``[B, K]`` and labels ``[B]``, or targets ``[B, K]`` of mixup, which smooths them itself."""
        if self.base == "bce":
            targets = F.one_hot(targets, self.num_classes) if targets.ndim == 1 else targets  # [B, K]
            return F.binary_cross_entropy_with_logits(logits, (targets > 0).to(logits.dtype))
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing if targets.ndim == 1 else 0.0)
