"""Label maps and XML files hold what mmseg's and mmdet's own readers take from them."""

import json
from collections import Counter

import cv2
import numpy as np
import pytest
from mmdet.datasets import XMLDataset
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from vitdense.mm.data.detection import CocoDataset
from vitdense.mm.data.label_maps import LabelMaps, read_label_map

VALUES = np.random.default_rng(0).choice(np.uint8([0, 1, 2, 3, 254, 255]), (12, 16))


def palette():
    image = Image.fromarray(VALUES, "P")
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
    return image


MAPS = {
    "8 bits": ("png", Image.fromarray(VALUES)),
    "palette": ("png", palette()),
    "1 bit": ("png", Image.fromarray(VALUES > 2)),
    "16 bits": ("png", Image.fromarray(VALUES.astype(np.uint16))),
    "TIFF": ("tif", Image.fromarray(VALUES)),
    "32 bits with negative values": ("tif", Image.fromarray(VALUES.astype(np.int32) - 1)),
    "BMP": ("bmp", Image.fromarray(VALUES)),
}


@pytest.mark.parametrize("label_map", [{}, {1: 0, 2: 255, 0: 1}])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("backend", ["pillow", "cv2"])
@pytest.mark.parametrize("what", MAPS)
def test_label_maps(what, backend, reduced, label_map, tmp_path):
    suffix, image = MAPS[what]
    path = str(tmp_path / f"map.{suffix}")
    image.save(path)
    sample = {"seg_map_path": path, "reduce_zero_label": reduced, "label_map": label_map or None, "seg_fields": []}
    want = LoadAnnotations(imdecode_backend=backend).transform(sample)["gt_seg_map"]
    raw = read_label_map(path, backend)
    if raw is None or raw.ndim == 3:  # OpenCV has colours of a palette: refused here, learned as labels there
        assert (what, backend) == ("palette", "cv2")
        return
    maps = LabelMaps(1, reduced=reduced, label_map=label_map)
    np.testing.assert_array_equal(np.vectorize(maps.label)(raw.astype(int)), want)


def xml(objects, head="", size="<size><width>80</width><height>60</height></size>"):
    return f"{head}<annotation>{size}{objects}</annotation>"


def box(name="cat", corners=(10, 10, 30, 30), more=""):
    sides = "".join(f"<{key}>{x}</{key}>" for key, x in zip(("xmin", "ymin", "xmax", "ymax"), corners))
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox></object>"


FILES = {
    "plain": xml(box() + box("dog")),
    "with a space": xml(box()),
    "blanks": xml(box(" cat ") + box("dog\n")),
    "difficult": xml(box(more="<difficult>1</difficult>") + box("dog", more="<difficult>0</difficult>")),
    "nested": xml(f"<part>{box()}</part>" + box("dog")),
    "shares": xml(box(corners=(0.1, 0.2, 0.6, 0.9))),
    "zero": xml(box(corners=(0, 0, 5, 5))),
    "other": xml(box("owl", corners=("a", 1, 2, 3))),
    "latin": xml(box("café"), '<?xml version="1.0" encoding="ISO-8859-1"?>').encode("latin-1"),
    "utf16": xml(box(), '<?xml version="1.0" encoding="UTF-16"?>').encode("utf-16"),
    "image": xml(box(), size=""),
    # What XMLDataset cannot read.
    "gb2312": xml(box(), '<?xml version="1.0" encoding="GB2312"?>').encode("gb2312"),
    "unknown": xml(box(), '<?xml version="1.0" encoding="none"?>'),
    "nan": xml(box(corners=("nan", 1, 2, 3))),
    "word": xml(box(more="<difficult>yes</difficult>")),
    "nameless": xml("<object><bndbox/></object>"),
    "float_size": xml(box(), size="<size><width>80.0</width><height>60</height></size>"),
    "png": xml(box(), size=""),
}
REFUSED = ("gb2312", "unknown", "nan", "word", "nameless", "float_size", "png")


@pytest.fixture(params=FILES)
def files(request, tmp_path):
    name, content = request.param, FILES[request.param]
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / f"Annotations/{name}.xml").write_bytes(content if isinstance(content, bytes) else content.encode())
    suffix = ".png" if name == "png" else ".jpg"
    cv2.imwrite(str(tmp_path / f"JPEGImages/{name}{suffix}"), np.zeros((60, 80, 3), np.uint8))
    (tmp_path / "ImageSets/Main/train.txt").write_text(f"{name}\n")
    options = {"data_root": str(tmp_path), "ann_file": "ImageSets/Main/train.txt", "pipeline": []}
    options |= {"data_prefix": {"sub_data_root": ""}, "metainfo": {"classes": ("cat", "dog", "café")}}
    return name, options


def test_xml(files):
    read_voc = pytest.importorskip("vitdense.extensions.formats.kind").read_voc
    name, options = files
    found = read_voc(XMLDataset(**options, lazy_init=True))
    if name in REFUSED:
        with pytest.raises((AttributeError, LookupError, OSError, SyntaxError, ValueError)):
            XMLDataset(**options)
        assert [fault.grave for fault in found.faults] == [True]
        assert not found.counts
        return
    (info,) = (built := XMLDataset(**options)).load_data_list()
    learned = [one for one in info["instances"] if not one["ignore_flag"]]
    own = {key: number for key, number in found.counts.items() if key in built.metainfo["classes"]}
    assert own == Counter(built.metainfo["classes"][one["bbox_label"]] for one in learned)
    assert found.sizes == {info["img_path"]: (info["width"], info["height"])}
    assert found.faults == [] or name == "shares"  # whose boxes have no area


def test_folders_that_new_reads(files, tmp_path):
    """Boxes, labels and ignored objects of the written file are those of mmdet's data set; names are trimmed."""
    read_folder = pytest.importorskip("vitdense.extensions.formats.voc").read_folder
    name, options = files
    content, _, faults = read_folder(tmp_path, "train")
    assert all(fault.grave for fault in faults)
    if name in ("gb2312", "png"):  # which mmdet does not read
        assert not faults
        assert [one["bbox"] for one in content["annotations"]] == [[9, 9, 20, 20]]
        return
    names = ("cat", "dog", "café", " cat ", "dog\n", "owl")
    try:
        (want,) = XMLDataset(**{**options, "metainfo": {"classes": names}}).load_data_list()
    except (AttributeError, LookupError, SyntaxError, ValueError):
        assert len(faults) == 1
        return
    assert not faults
    (tmp_path / "all.json").write_text(json.dumps(content))
    options |= {"ann_file": "all.json", "data_prefix": {"img": "JPEGImages"}, "test_mode": True}
    options["metainfo"] = {"classes": [one["name"] for one in content["categories"]]}
    (got,) = CocoDataset(**options).load_data_list()

    def objects(info, names):
        kept = [one for one in info["instances"] if one["bbox"][2] > one["bbox"][0]]  # as in both trainings
        return sorted((*one["bbox"], one["ignore_flag"], names[one["bbox_label"]].strip()) for one in kept)

    assert objects(got, options["metainfo"]["classes"]) == objects(want, names)
    for key in ("img_path", "width", "height"):
        assert got[key] == want[key]
