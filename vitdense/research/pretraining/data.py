"""Data for classification and masked pretraining: folders of images, a sampler, augmentation, masks, top-1."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.dataset import BaseDataset, DefaultSampler
from mmengine.evaluator import BaseMetric
from mmengine.structures import BaseDataElement
from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from vitdense.errors import OptionError
from vitdense.mm.data.seeded import SeededIndex
from vitdense.mm.registry import DATA_SAMPLERS, DATASETS, METRICS, TRANSFORMS
from vitdense.research.pretraining.targets import MASKS


@DATASETS.register_module()
class ImageFolder(BaseDataset):
    """The images in a folder and its sub-folders, in order of their names.

    Args:
        data_root: The folder.
        labels: Whether the sub-folder directly in `data_root` is the class of an image, as in ImageNet. Classes are in
            the order of ``metainfo=dict(classes=...)``, else of their names.
        **options: Options of mmengine's `BaseDataset`, such as `metainfo` and `pipeline`.

    Raises:
        ValueError: There is no image; or with labels, an image is outside of the classes' folders.
    """

    def __init__(self, data_root: str, labels: bool = False, **options: object) -> None:
        self.labels = labels
        super().__init__(data_root=data_root, **options)

    def load_data_list(self) -> list[dict]:
        """Paths and, with labels, classes, as mmengine asks for them."""
        root = Path(self.data_root)
        files = (Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names)
        paths = sorted(path for path in files if path.suffix.lower() in IMG_EXTENSIONS)
        if not paths:
            raise OptionError(f"data_root: {root} has no image; expected files {', '.join(IMG_EXTENSIONS)}")
        if not self.labels:
            return [{"img_path": str(path)} for path in paths]
        folders = [path.relative_to(root).parts[0] for path in paths]
        # A folder without images counts too, so that every split has the same numbers.
        found = sorted(path.name for path in root.iterdir() if path.is_dir())
        classes = self._metainfo.setdefault("classes", tuple(found))
        if strange := sorted(set(folders) - set(classes)):
            raise OptionError(
                f"data_root: got images in {', '.join(strange[:5])} of {root}, expected all in folders of the classes "
                f"{', '.join(classes[:5])}..; move them into these, or out of {root}"
            )
        number = {name: i for i, name in enumerate(classes)}
        return [{"img_path": str(path), "gt_label": number[name]} for path, name in zip(paths, folders)]


@TRANSFORMS.register_module()
class TimmTransform:
    """Step of a pipeline after ``vitdense.LoadImage``, mostly the last: timm's augmentation, and normalisation.

    Args:
        size: Side of the square result in pixels.
        training: Whether to augment. Otherwise the image is resized to ``size / crop_pct`` and its centre cut.
        **options: Other arguments of `timm.data.create_transform`, such as ``auto_augment='rand-m9-mstd0.5-inc1'``,
            ``re_prob=0.25``, ``scale=(0.2, 1.0)``, ``interpolation='bicubic'``.
    """

    def __init__(self, size: int, training: bool = True, **options: object) -> None:
        from timm.data import create_transform

        self.transform = create_transform(size, is_training=training, **options)

    def __call__(self, results: dict) -> dict:
        """A normalised RGB image ``[3, size, size]`` and its sample."""
        image = Image.fromarray(np.ascontiguousarray(results["img"][..., ::-1]))
        sample = BaseDataElement(metainfo={"img_path": results["img_path"]})
        if "gt_label" in results:
            sample.gt_label = results["gt_label"]
        return {"inputs": self.transform(image), "data_samples": sample}


@TRANSFORMS.register_module()
class DrawMask:
    """Step of a pipeline after ``vitdense.TimmTransform``: the mask of masked pretraining.

    The mask is drawn by torch's generator in the process that loads the image. The sample gets `mask`,
    ``[H // cell, W // cell]``, True where masked, and `cell`; both stay on the CPU.

    Args:
        ratio: Share of masked cells, above 0 and below 1.
        cell: Side of a cell in pixels: the stride of the backbone's last map, or a multiple of it.
        kind: ``'random'`` or ``'blocks'`` (`block_mask`).

    Raises:
        ValueError: Another kind, ratio or cell; in a call: the image is smaller than a cell.
    """

    def __init__(self, ratio: float, cell: int, kind: str = "random") -> None:
        if kind not in MASKS or not 0 < ratio < 1 or cell < 1:
            raise OptionError(
                f"vitdense.DrawMask: got kind={kind!r}, ratio={ratio}, cell={cell}; expected {' or '.join(MASKS)}, a "
                f"ratio between 0 and 1, and a positive number of pixels"
            )
        self.draw, self.ratio, self.cell = MASKS[kind], ratio, cell

    def __call__(self, results: dict) -> dict:
        """Give the sample of an image ``[3, H, W]`` its mask."""
        size = tuple(results["inputs"].shape[-2:])
        grid = tuple(n // self.cell for n in size)
        if min(grid) < 1:
            raise OptionError(f"DrawMask: got an image of {size} pixels, expected at least a cell: {self.cell}")
        results["data_samples"].set_metainfo({"mask": self.draw(grid, self.ratio), "cell": self.cell})
        return results


@METRICS.register_module()
class Top1(BaseMetric):
    """Top-1 accuracy in percent."""

    default_prefix = "accuracy"

    def process(self, data_batch: Mapping, data_samples: Sequence[Mapping]) -> None:
        self.results += [sample["pred_label"] == sample["gt_label"] for sample in data_samples]

    def compute_metrics(self, results: list) -> dict[str, float]:
        return {"top1": 100 * sum(results) / len(results)}


@DATA_SAMPLERS.register_module()
class SeededRepeatedSampler(DefaultSampler):
    """Repeated augmentation (Hoffer et al., CVPR 2020; DeiT Table 9), with a seed per draw.

    Every image comes `repeats` times in a row, on different ranks if there are several. As in the authors' code, an
    epoch has as many samples as the data set, rounded down to a multiple of 256; so it shows a third of the images.

    Args:
        dataset: Data set.
        repeats: Augmentations of an image.
        seed: Seed of the order, and of the augmentation.
    """

    def __init__(self, dataset: Dataset, repeats: int = 3, seed: int | None = None) -> None:
        super().__init__(dataset, shuffle=True, seed=seed)
        self.repeats = repeats
        total = len(dataset) // 256 * 256 or len(dataset)
        self.num_samples = total // self.world_size
        self.total_size = self.num_samples * self.world_size

    def __iter__(self) -> Iterator[SeededIndex]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator).repeat_interleave(self.repeats).tolist()
        start = self.epoch * self.total_size + self.rank
        for i, index in enumerate(order[self.rank :: self.world_size][: self.num_samples]):
            yield SeededIndex(index, (self.seed, start + i * self.world_size))
