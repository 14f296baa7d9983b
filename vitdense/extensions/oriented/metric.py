"""The AP of oriented boxes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitdense.extensions.oriented.boxes import from_corners, to_le90
from vitdense.extensions.oriented.labels import with_corners
from vitdense.extensions.oriented.ops import box_iou_rotated
from vitdense.files import atomic_write
from vitdense.mm.data.coco import Source
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import METRICS
from vitdense.mm.train.coco_engines import Evaluation
from vitdense.mm.train.metrics import FasterCocoMetric

ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")


@METRICS.register_module()
class OrientedMetric(FasterCocoMetric):
    """The AP of oriented boxes by the IoU of turned boxes, ``oriented_mAP``, and `FasterCocoMetric` for straight ones.

    ``oriented_mAP_50`` is the measure of DOTA's leaderboard, at COCO's recalls. hotcoco computes it.

    Raises:
        ConfigError: Results have no corners.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"engine": "hotcoco", **options})

    def read(self, source: Source) -> Mapping:
        return with_corners(super().read(source))

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        super().process(data_batch, data_samples)
        for (_, found), sample in zip(self.results[-len(data_samples) :], data_samples):
            if "corners" not in sample["pred_instances"]:
                raise ConfigError("metric of oriented boxes: got results without; --tta has none")
            found["corners"] = sample["pred_instances"]["corners"].cpu()

    def results2json(self, results: Sequence[dict], outfile_prefix: str) -> dict[str, str]:
        """Write mmdet's files, and DOTA's results of task 1; see `write_results`."""
        images = {one["id"]: Path(one["file_name"]).stem for one in self._coco_api.dataset["images"]}
        classes, names = self.dataset_meta["classes"], [images[number] for number in self.img_ids]
        write_results(Path(outfile_prefix), classes, names, results)
        return super().results2json(results, outfile_prefix)

    def inputs(self, found: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
        yield from super().inputs(found)
        corners = torch.cat([one["corners"] for one in found]).double()  # [N, 4, 2]
        places = {"obb": to_le90(from_corners(corners)).tolist(), "corners": corners.flatten(1).tolist()}
        yield "obb", self._input("obb", found, places, fields=["obb"])

    def figures(self, name: str, evaluation: Evaluation | None) -> dict[str, float]:
        """The values of straight boxes; for ``obb``, ``oriented_mAP`` and the other `ITEMS`."""
        if name != "obb":
            return super().figures(name, evaluation)
        figures = evaluation.precisions("sml") if evaluation else dict.fromkeys(ITEMS, 0.0)
        return {f"oriented_{item}": round(value, 3) for item, value in figures.items()}


def write_results(prefix: Path, classes: Sequence[str], names: Sequence[str], found: Sequence[Mapping]) -> None:
    """Write DOTA's results of task 1, ``{prefix}.Task1_{class}.txt``: image, score and corners in a line.

    `names` are of the images, without suffix; each has ``labels``, ``scores`` and ``corners``, ``[N, 4, 2]`` in pixels.
    """
    for label, name in enumerate(classes):
        with atomic_write(Path(f"{prefix}.Task1_{name}.txt")) as scratch, scratch.open("w", encoding="utf-8") as file:
            for image, one in zip(names, found):
                for row in (np.asarray(one["labels"]) == label).nonzero()[0]:
                    places = " ".join(f"{v:.2f}" for v in np.asarray(one["corners"][row]).ravel())
                    file.write(f"{image} {float(one['scores'][row]):.6f} {places}\n")


def shared(found: Sequence[Sequence[float]], objects: Sequence[Mapping], crowds: Sequence[int]) -> np.ndarray:
    """IoUs of corners [D, 8] with those of G annotations, [D, G]; of a crowd the share of the found object inside.

    An annotation without corners overlaps nothing.
    """
    corners = found, [one.get("corners", [0.0] * 8) for one in objects]
    pair = [torch.tensor(one, dtype=torch.float64).unflatten(1, (4, 2)) for one in corners]
    ious, shares = (box_iou_rotated(*pair, mode=mode).numpy() for mode in ("iou", "iof"))  # [D, G] each
    return np.where(crowds, shares, ious)
