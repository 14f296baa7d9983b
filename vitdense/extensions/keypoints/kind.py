"""Keypoints as a kind of labels, see `vitdense.seams.kind_of`."""

from collections.abc import Collection, Iterator
from pathlib import Path

from vitdense.extensions.keypoints.categories import (
    PAIRS,
    PERSON,
    Kinds,
    keypoint_faults,
    kinds_of,
    metainfo_of,
    mirror_faults,
    with_points,
)
from vitdense.mm.checks.sets import SAME_NAMES, AnnotatedSet
from vitdense.mm.config.query import leaf_datasets, type_name
from vitdense.mm.data.coco import overview, parse
from vitdense.mm.data.faults import Fault, Samples


class Checks(AnnotatedSet):
    """Instances with keypoints."""

    def read(self) -> Samples:
        samples, content = super().read(), parse(Path(self.file))
        samples.faults += keypoint_faults({"annotations": [], **content}, self.classes)
        points = [one.get("keypoints") for one in content.get("annotations", ())]
        labelled = sum(any(one[2::3]) for one in points if isinstance(one, list))
        samples.rows.append(f"annotations with labelled keypoints: {labelled}")
        return samples

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        yield from super().faults(first, trained)
        about = metainfo_of(Path(self.file), self.dataset.get("metainfo") or {})
        own = Kinds(**{field: about[field] for field in Kinds._fields})
        category = next(one for one in overview(Path(self.file)).content if one["name"] in about["classes"])
        if kinds_of(category).keypoints != own.keypoints:
            what = "keypoints have another order than the first data; they are taken by name"
            yield Fault(f"{self.file}: {what}", self.where, grave=False)
        data = (self.cfg.get("train_dataloader") or {}).get("dataset", self.dataset)  # a test may have no training
        learned = next(filter(None, map(self.kind.points_of, leaf_datasets(data))), own)
        others = sorted({*learned.keypoints} ^ {*own.keypoints})
        if others:
            yield Fault("keypoints are others than those of the training", self.where, tuple(others), fix=SAME_NAMES)
        elif self.training and own.in_order(learned.keypoints).mirrored != learned.mirrored:
            what = "pairs that a flip swaps are others than in the first training data"
            yield Fault(f"{self.file}: {what}", self.where, fix=f"state the same {PAIRS}")
        number, head = len(own.keypoints), self.cfg.model.get("bbox_head") or {}
        expected = head.get("num_keypoints", len(PERSON["keypoints"]))
        if type_name(head) == "RFDETRKeypointHead" and expected != number:
            what = f"{self.file} has {number} keypoints, and model.bbox_head.num_keypoints is {expected}"
            yield Fault(what, self.where, fix=f"set it to {number}")
        pipeline = self.dataset.get("pipeline") or ()
        if self.training and any(type_name(step) == "LoadAnnotations" for step in pipeline):
            fix = "put vitdense.LoadKeypoints, without options, in its place"
            yield Fault("pipeline: got LoadAnnotations, which loads no keypoints", self.where, fix=fix)
        if self.training and not any(fault.grave for fault in self.samples.faults):
            rows = with_points(parse(Path(self.file)), self.classes, own.keypoints)["annotations"]
            yield from (fault.within(f"{self.where}: {self.file}") for fault in mirror_faults(own, rows))
        if not self.training and not own.sigmas:
            fix = "add metainfo=dict(sigmas=[...]) to the data sets, or 'sigmas' to the category"
            yield Fault(f"the metric needs a sigma for each of {number} keypoints", self.where, fix=fix)
