"""Oriented boxes as a kind of labels, see `vitdense.seams.kind_of`."""

from collections.abc import Collection, Iterator
from pathlib import Path

from vitdense.extensions.oriented.labels import corner_faults, with_corners
from vitdense.mm.checks.sets import AnnotatedSet
from vitdense.mm.config.query import type_name
from vitdense.mm.data.coco import FOUR_CORNERS, TURNED, parse
from vitdense.mm.data.faults import Fault, Samples

STEP = 'dict(type="LoadAnnotations", with_bbox=True, box_type="corners")'


class Checks(AnnotatedSet):
    """Instances with four corners."""

    def read(self) -> Samples:
        samples, content = super().read(), {"annotations": [], **parse(Path(self.file))}
        samples.faults = [fault for fault in samples.faults if fault.what not in (TURNED, FOUR_CORNERS)]
        found = list(corner_faults(content, self.classes))
        samples.faults += found
        if not any(fault.grave for fault in found):
            number = sum("corners" in one for one in with_corners(content)["annotations"])
            samples.rows.append(f"oriented boxes: {number}")
        return samples

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        yield from super().faults(first, trained)
        steps = self.dataset.get("pipeline") or ()
        if self.training and any(type_name(x) == "LoadAnnotations" and x.get("box_type") != "corners" for x in steps):
            yield Fault("pipeline: got LoadAnnotations of straight boxes", self.where, fix=f"put {STEP} in its place")
