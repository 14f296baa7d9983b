"""Sizes of the batches that a detector trains on: COCO's sizes through the augmentation of a config, without images."""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from mmengine import Config
from mmengine.dataset import Compose
from mmengine.registry import DATA_SAMPLERS, init_default_scope

IMAGES = 118_287  # of an epoch of COCO
CONFIG = Path(__file__).parents[1] / "configs/cascade_swin_t_coco.py"
READS_OR_PACKS = ("LoadImage", "LoadImageFromFile", "LoadAnnotations", "PackDetInputs")  # a size needs none of them
# Height, width and number of the images of COCO 2017: 316 of train and val.
COCO = """
480x640 66, 427x640 41, 640x480 29, 426x640 16, 375x500 12, 428x640 10, 424x640 8, 333x500 7, 425x640 6, 500x375 6,
640x427 6, 640x426 4, 640x478 4, 374x500 3, 433x640 3, 640x428 3, 334x500 2, 383x640 2, 399x640 2, 429x640 2,
449x640 2, 457x640 2, 464x640 2, 478x640 2, 484x640 2, 500x333 2, 640x358 2, 640x425 2, 140x213 1, 240x320 1,
302x400 1, 304x640 1, 313x640 1, 320x640 1, 332x500 1, 336x448 1, 342x640 1, 346x500 1, 357x500 1, 358x640 1,
359x640 1, 360x640 1, 361x640 1, 368x640 1, 370x500 1, 377x500 1, 382x640 1, 393x640 1, 400x500 1, 400x640 1,
406x500 1, 406x640 1, 408x640 1, 409x640 1, 414x640 1, 418x640 1, 420x640 1, 421x640 1, 422x640 1, 423x640 1,
444x640 1, 461x614 1, 461x640 1, 463x640 1, 469x469 1, 474x640 1, 476x640 1, 479x640 1, 482x640 1, 483x640 1,
486x500 1, 489x640 1, 498x640 1, 500x376 1, 500x389 1, 500x500 1, 506x640 1, 512x640 1, 522x640 1, 559x640 1,
579x640 1, 593x600 1, 600x450 1, 612x612 1, 640x359 1, 640x383 1, 640x414 1, 640x424 1, 640x449 1, 640x457 1,
640x460 1, 640x470 1, 640x474 1, 640x479 1, 640x621 1, 640x640 1
"""


def size_counts() -> dict[tuple[int, int], int]:
    """`COCO` as numbers: images of every size (h, w)."""
    rows = (row.replace("x", " ").split() for row in COCO.split(","))
    return {(int(height), int(width)): int(count) for height, width, count in rows}


class BlankImages:
    """Black images of sizes drawn from `COCO`, as a data set; an index gives the size (h, w) after augmentation.

    Args:
        pipeline: Transforms of a config. Those that read files or pack results are left out.
        length: Images.
        seed: Of their sizes. The augmentation has the seed of the index, as in training.
    """

    def __init__(self, pipeline: Sequence[dict], length: int, seed: int) -> None:
        counts = size_counts()
        self.sizes = random.Random(seed).choices([*counts], [*counts.values()], k=length)
        self.augment = Compose([step for step in pipeline if step["type"].split(".")[-1] not in READS_OR_PACKS])

    def __len__(self) -> int:
        return len(self.sizes)

    def get_data_info(self, index: int) -> dict[str, int]:
        """What `AspectRatioBatchSampler` asks for."""
        height, width = self.sizes[index]
        return {"height": height, "width": width}

    def __getitem__(self, index: int) -> tuple[int, int]:
        size = self.sizes[index]
        image = np.zeros((*size, 3), np.uint8)
        results = self.augment({"sample_idx": index, "img": image, "img_shape": size, "ori_shape": size})
        return results["img_shape"][:2]


def draw_batch_sizes(steps: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Sizes (B, h, w) of the first batches of a training, by the samplers, transforms and padding of `CONFIG`.

    Args:
        steps: Batches, fewer than in an epoch.
        seed: Of the images, of their order and of their augmentation.
    """
    cfg = Config.fromfile(CONFIG)
    init_default_scope(cfg.default_scope)
    loader = cfg.train_dataloader
    images = BlankImages(loader.dataset.pipeline, IMAGES, seed)
    sampler = DATA_SAMPLERS.build(loader.sampler, default_args={"dataset": images, "seed": seed})
    batching = {"sampler": sampler, "batch_size": loader.batch_size}
    batches = DATA_SAMPLERS.build(loader.batch_sampler, default_args=batching)
    divisor = cfg.model.data_preprocessor.pad_size_divisor
    return [padded([images[index] for index in batch], divisor) for batch in islice(batches, steps)]


def padded(sizes: Sequence[tuple[int, int]], divisor: int) -> tuple[int, int, int]:
    """Size (B, h, w) of the batch that mm's data preprocessor makes of images of sizes (h, w)."""
    height, width = (-(-max(sides) // divisor) * divisor for sides in zip(*sizes))
    return len(sizes), height, width
