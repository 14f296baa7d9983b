"""Keypoints as a kind of labels, see `vitdense.seams.kind_of`."""

from collections.abc import Collection, Iterator
from pathlib import Path

from vitdense.extensions.keypoints.categories import PERSON, keypoint_faults, kinds_of, metainfo_of
from vitdense.mm.checks.sets import SAME_NAMES, AnnotatedSet
from vitdense.mm.config.query import leaf_datasets, type_name
from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import overview, parse
from vitdense.mm.data.faults import Fault, Samples


class Checks(AnnotatedSet):
    """Instances with keypoints."""

    def read(self) -> Samples:
        samples, content = super().read(), parse(Path(self.file))
        samples.faults += keypoint_faults({"annotations": [], **content}, self.classes)
        points = [one["keypoints"][2::3] for one in content.get("annotations", ()) if one.get("keypoints")]
        labelled = sum(any(flags) for flags in points)
        samples.rows.append(f"annotations with labelled keypoints: {labelled}")
        return samples

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        yield from super().faults(first, trained)
        about = metainfo_of(Path(self.file), self.dataset.get("metainfo") or {})
        categories = {clean(one["name"]): one for one in overview(Path(self.file)).content}
        own = kinds_of(categories[about["classes"][0]])
        if own.keypoints != about["keypoints"]:
            what = "keypoints have another order than the first data; they are taken by name"
            yield Fault(f"{self.file}: {what}", self.where, grave=False)
        data = (self.cfg.get("train_dataloader") or {}).get("dataset", self.dataset)  # a test may have no training
        learned = next(filter(None, map(self.kind.points_of, leaf_datasets(data))), own)
        if sorted(learned.keypoints) != sorted(own.keypoints):
            others = sorted({*learned.keypoints} ^ {*own.keypoints})
            yield Fault("keypoints are others than those of the training", self.where, tuple(others), fix=SAME_NAMES)
        number, head = len(about["keypoints"]), self.cfg.model.get("bbox_head") or {}
        expected = head.get("num_keypoints", len(PERSON["keypoints"]))
        if type_name(head) == "RFDETRKeypointHead" and expected != number:
            what = f"{self.file} has {number} keypoints, and model.bbox_head.num_keypoints is {expected}"
            yield Fault(what, self.where, fix=f"set it to {number}")
        if not self.training and len(about["sigmas"]) != number:
            what = f"the metric needs a sigma for each of {number} keypoints, got {len(about['sigmas'])}"
            yield Fault(
                what, self.where, fix="add metainfo=dict(sigmas=[...]) to the data sets, or 'sigmas' to the category"
            )
