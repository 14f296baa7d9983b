"""Checks of Pascal VOC's XML files, as mmdet's XMLDataset reads them."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from xml.etree import ElementTree

from mmdet.datasets import XMLDataset
from mmengine.dataset import BaseDataset
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS

from vitdense.mm.checks.sets import SAME_NAMES, DataSet
from vitdense.mm.data.faults import Fault, Faults, Samples
from vitdense.mm.errors import join_some


def read_voc(built: BaseDataset) -> Samples:
    """Read the XML files of an `XMLDataset` with ``lazy_init``, each by the data set itself.

    Counts are of the objects in training; objects of other classes are counted by their names.
    """
    classes, counts, sizes, faults, difficult = built.metainfo["classes"], Counter(), {}, Faults(), 0
    built.cat2label = {name: label for label, name in enumerate(classes)}
    for name in list_from_file(built.ann_file):
        path = Path(built.sub_data_root, built.ann_subdir, f"{name}.xml")
        about = {"img_id": name, "file_name": f"{built.img_subdir}/{name}.jpg", "xml_path": str(path)}
        try:
            info = built.parse_data_info(about)
            names = [one.findtext("name") for one in ElementTree.parse(path).getroot().findall("object")]
        except Exception as error:  # mmdet's reader may raise anything on a damaged file
            faults.add(f"XML files cannot be read by {type(built).__name__} ({type(error).__name__}: {error})", path)
            continue
        sizes[info["img_path"]] = info["width"], info["height"]
        counts.update(name for name in names if name not in built.cat2label)
        for one in info["instances"]:
            left, upper, right, lower = one["bbox"]
            if one["ignore_flag"]:
                difficult += 1
                continue
            counts[classes[one["bbox_label"]]] += 1
            if right <= left or lower <= upper:
                faults.add("objects have a box without area (bndbox has corners)", path, grave=False)
    if difficult and not any(counts[name] for name in classes):
        faults.add(f"all {difficult} objects are marked difficult: none is learned", built.ann_file)
    rows = [f"images: {len(sizes)}, objects: {counts.total()}"]
    rows += [f"difficult objects, which training leaves out: {difficult}"] if difficult else []
    return Samples(sizes, counts, list(faults), rows)


class Checks(DataSet):
    """The files of an `XMLDataset`."""

    def read(self) -> Samples:
        if self.kind.load_data_list is not XMLDataset.load_data_list:  # of other files
            return Samples({})
        with DATASETS.switch_scope_and_registry("mmdet") as registry:
            return read_voc(registry.build({**self.dataset, "pipeline": [], "lazy_init": True}))

    def faults(self, first: bool, trained: Collection[str]) -> Iterator[Fault]:
        yield from super().faults(first, trained)
        own, others = self.classes, [(x, n) for x, n in self.samples.counts.items() if x not in self.classes]
        if others:
            names = join_some(f"{x if x == x.strip() else repr(x)} ({n})" for x, n in others)
            what = f"objects of names that are no class are left out: {names}; got {join_some(own)}"
            grave = len(self.absent) == len(own) or (bool(self.absent) and self.training)
            yield Fault(what, self.where, fix=SAME_NAMES, grave=grave)
