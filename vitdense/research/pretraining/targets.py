"""Masks and targets of masked-image pretraining."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitdense.errors import OptionError
from vitdense.research.pretraining.teacher import ModelWithTeacher, Teacher

BINS = 8  # of every colour channel: 3 bits (ViT appendix B.1.2)


def random_mask(grid: tuple[int, int], ratio: float) -> Tensor:
    """A mask of an image with a share of its cells, rounded up: ``[h, w]``, True where masked."""
    cells = grid[0] * grid[1]
    count = math.ceil(cells * ratio - 1e-6)  # 75 % of 196 cells are 147, despite rounding errors
    return (torch.randperm(cells) < count).unflatten(0, grid)  # [h, w]


def block_mask(grid: tuple[int, int], ratio: float) -> Tensor:
    """Mask a share of the image by rectangles (BEiT algorithm 1): ``[h, w]``, True where masked.

    Rectangles have at least 16 cells and aspects of 0.3 to 3.3. They are cut at the border of the grid, and smaller if
    less of the share is left. A rectangle that exceeds the share is drawn again, at most ten times.
    """
    mask = torch.zeros(grid, dtype=torch.bool)  # [h, w]
    allowed = max(1, round(grid[0] * grid[1] * ratio))
    misses = 0
    while (left := allowed - int(mask.sum())) > 0 and misses < 10:
        area = torch.empty(()).uniform_(min(16, left), left).item()
        aspect = math.exp(torch.empty(()).uniform_(math.log(0.3), math.log(1 / 0.3)).item())
        # BEiT redraws rectangles that exceed the grid, which would mask nothing on a narrow map.
        h = min(grid[0], round(math.sqrt(area * aspect)))
        w = min(grid[1], round(math.sqrt(area / aspect)))
        top, start = int(torch.randint(grid[0] - h + 1, ())), int(torch.randint(grid[1] - w + 1, ()))
        block = mask[top : top + h, start : start + w]
        misses += 1
        if 0 < int((~block).sum()) <= left:
            block.fill_(True)
            misses = 0
    return mask


MASKS: dict[str, Callable[[tuple[int, int], float], Tensor]] = {"random": random_mask, "blocks": block_mask}


def patches(images: Tensor, side: int) -> Tensor:
    """Whole patches ``[B, h, w, side * side * 3]`` of images ``[B, 3, H, W]``: rows, then columns, then channels."""
    b, c, h, w = (*images.shape[:2], *(n // side for n in images.shape[2:]))
    x = images[..., : h * side, : w * side].reshape(b, c, h, side, w, side)  # [B, 3, h, side, w, side]
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3)  # [B, h, w, side*side*3]


def class_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy of every patch, ``[B, h, w]``, of logits ``[B, h, w, K]`` and classes ``[B, h, w]``."""
    return F.cross_entropy(logits.movedim(-1, 1), classes, reduction="none")  # [B, h, w]


class PixelTarget:
    """The pixels of every patch.

    Args:
        loss: ``'mse'`` (MAE) or ``'l1'`` (SimMIM).
        norm: ``'patch'`` normalises every patch by its mean and unbiased variance (MAE). An odd number above 1
            normalises every pixel by the mean and variance of a window of this many pixels around it (47 for Swin V2).
            None changes nothing.
    """

    def __init__(self, side: int, loss: str = "mse", norm: str | int | None = "patch") -> None:
        losses = {"mse": F.mse_loss, "l1": F.l1_loss}
        if loss not in losses or not (norm in (None, "patch") or (isinstance(norm, int) and norm > 1 and norm % 2)):
            raise OptionError(
                f"target: got loss={loss!r}, norm={norm!r}; expected 'mse' or 'l1', and None, 'patch' or an odd number "
                f"above 1"
            )
        self.side, self.pixel_loss, self.norm = side, losses[loss], norm
        self.channels = 3 * side**2

    def __call__(self, model: ModelWithTeacher, images: Tensor) -> Tensor:
        """``[B, h, w, channels]``, of normalised images ``[B, 3, H, W]``."""
        if isinstance(self.norm, int):
            pool = partial(F.avg_pool2d, kernel_size=self.norm, stride=1, padding=self.norm // 2)
            mean, square = (pool(x, count_include_pad=False) for x in (images, images**2))  # [B, 3, H, W] each
            count = pool(torch.ones_like(images[:1, :1]), divisor_override=1)  # [1, 1, H, W] pixels inside the image
            variance = (square - mean**2) * count / (count - 1)
            images = (images - mean) / (variance.clamp(min=0) + 1e-6).sqrt()  # [B, 3, H, W]
        x = patches(images, self.side)  # [B, h, w, D]
        if self.norm == "patch":
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt()
        return x

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Mean over the pixels of every patch, ``[B, h, w]``; both are ``[B, h, w, channels]``."""
        return self.pixel_loss(prediction, target, reduction="none").mean(-1)  # [B, h, w]


class MeanColour:
    """The mean colour of every patch, one of 512: three bits a channel (ViT section 4.6 and appendix B.1.2)."""

    loss = staticmethod(class_loss)
    channels = BINS**3

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, model: ModelWithTeacher, images: Tensor) -> Tensor:
        """Classes ``[B, h, w]`` of normalised images ``[B, 3, H, W]``."""
        mean = patches(model.raw(images), self.side).unflatten(-1, (-1, 3)).mean(-2)  # [B, h, w, 3]
        bins = (mean * BINS).long().clamp(max=BINS - 1)  # white is in the last one
        return (bins * bins.new_tensor([BINS**2, BINS, 1])).sum(-1)  # [B, h, w]


class VisualWords:
    """The word of every patch: the centre nearest to a teacher's feature. In BEiT a tokenizer gives the words.
    `centres` are ``[words, C]``, or a file that `torch.save` wrote; see `find_words`.
    """

    loss = staticmethod(class_loss)

    def __init__(self, side: int, centres: Tensor | str) -> None:
        self.side = side
        self.centres = torch.load(centres, weights_only=True) if isinstance(centres, str) else centres
        self.channels = len(self.centres)

    def __call__(self, model: ModelWithTeacher, images: Tensor) -> Tensor:
        """Words ``[B, h, w]`` of normalised images ``[B, 3, H, W]``."""
        h, w = (n // self.side for n in images.shape[2:])
        whole = model.raw(images[..., : h * self.side, : w * self.side])  # [B, 3, H', W']
        features = word_features(model.teacher, whole, (h, w)).flatten(1, 2)  # [B, h*w, C]
        return torch.cdist(features, self.centres.to(features)).argmin(-1).unflatten(1, (h, w))  # [B, h, w]


def word_features(teacher: Teacher, images: Tensor, grid: tuple[int, int]) -> Tensor:
    """The teacher's last map, ``[B, h, w, C]``, of images ``[B, 3, H, W]`` with values in [0, 1], resized to fit it."""
    stride = teacher.model.out_strides[-1]
    return teacher(images, (grid[0] * stride, grid[1] * stride))[-1].permute(0, 2, 3, 1)  # [B, h, w, C]


def find_words(teacher: Teacher, batches: Sequence[Tensor], grid: tuple[int, int], words: int) -> Tensor:
    """Centres of a teacher's features, by k-means: ``[words, C]``. The teacher's model is a backbone, `batches` are
    images ``[B, 3, H, W]`` with values in [0, 1] and a `grid` (h, w) of patches each.
    """
    from scipy.cluster.vq import kmeans2  # not a dependency of mmengine

    features = torch.cat([word_features(teacher, x, grid).flatten(0, 2) for x in batches])  # [N, C]
    centres, _ = kmeans2(features.double().numpy(), words, minit="++", seed=0)
    return torch.from_numpy(centres).float()


TARGETS = {"pixels": PixelTarget, "mean_colour": MeanColour, "words": VisualWords}
