"""The AP of keypoints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vitdense.extensions.keypoints.categories import sigmas_fault, with_points
from vitdense.mm.data.coco import Source
from vitdense.mm.errors import ConfigError
from vitdense.mm.registry import METRICS
from vitdense.mm.train.coco_engines import Evaluation, mean
from vitdense.mm.train.metrics import FasterCocoMetric, Truth

ITEMS = ("mAP", "mAP_50", "mAP_75", "mAP_m", "mAP_l", "AR")  # by OKS


@METRICS.register_module()
class KeypointMetric(FasterCocoMetric):
    """`FasterCocoMetric` for boxes, and the AP of keypoints by OKS, for at most 20 objects per image.

    Sigmas are from the data's `metainfo`, see `Kinds`.

    Raises:
        ConfigError: Results have no keypoints, or the sigmas are missing or do not fit their number.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.format_only:
            raise ConfigError(
                "metric of keypoints: got format_only=True; `vitdense predict` writes results of images without labels"
            )

    def read(self, source: Source) -> Mapping:
        """The content of an annotation file, its keypoints reordered by name as in the data, once they are known."""
        content = super().read(source)
        return content if self.dataset_meta is None else self._by_name(content)

    def _by_name(self, content: Mapping) -> Mapping:
        classes, names = self.dataset_meta["classes"], self.dataset_meta.get("keypoints")
        own = next((one["keypoints"] for one in content["categories"] if one["name"] in classes), ())
        content = with_points(content, classes, names or own)
        for one in content["annotations"]:  # copies
            one.setdefault("num_keypoints", sum(flag > 0 for flag in one["keypoints"][2::3]))
        return content

    def _number(self, truths: Sequence[Mapping]) -> None:
        if self.source and self._coco_api.classes is None:  # the constructor has read it
            self._coco_api = Truth({key: self._by_name(one) for key, one in self._coco_api.contents.items()})
        super()._number(truths)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        super().process(data_batch, data_samples)
        for (_, found), sample in zip(self.results[-len(data_samples) :], data_samples):
            if "keypoints" not in sample["pred_instances"]:
                raise ConfigError("metric of keypoints: got results without; --tta has none, nor has another model")
            found["keypoints"] = sample["pred_instances"]["keypoints"].cpu().numpy()

    def inputs(self, found: Sequence[Mapping]) -> Iterator[tuple[str, dict]]:
        yield from super().inputs(found)
        sigmas, number = list(self.dataset_meta.get("sigmas", ())), found[0]["keypoints"].shape[1]
        if fault := sigmas_fault(sigmas or "none", number):
            raise ConfigError(
                f"metric of keypoints: {fault}; 'sigmas' of the category in the annotation file, or "
                f"metainfo=dict(sigmas=[...]) of the data"
            )
        points = [row.ravel().tolist() for one in found for row in one["keypoints"]]  # [3 K] each
        options = {"limits": [20], "fields": ["keypoints", "num_keypoints"], "kpt_oks_sigmas": np.array(sigmas)}
        yield "keypoints", self._input("keypoints", found, {"keypoints": points}, **options)

    def figures(self, name: str, evaluation: Evaluation | None) -> dict[str, float]:
        """The values of boxes; for ``keypoints``, ``keypoints_mAP`` and the other `ITEMS`."""
        if name != "keypoints":
            return super().figures(name, evaluation)
        figures = figures_of(evaluation) if evaluation else dict.fromkeys(ITEMS, 0.0)
        return {f"keypoints_{item}": round(value, 3) for item, value in figures.items()}


def figures_of(evaluation: Evaluation) -> dict[str, float]:
    """`ITEMS`, 0 to 1, as pycocotools defines them; -1 where there is no object."""
    return {**evaluation.precisions("ml"), "AR": mean(evaluation.recall[..., 0, -1])}
