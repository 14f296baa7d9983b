"""Each mechanism x each kind of label: the proof, or why there is none.

A column is a dict from a mechanism to a cell. An extension brings its own in ``tests/extensions/NAME/column.py``. A
cell is one of

- ``(RIGHT, test, ...)``: the tests that prove it, by their node ids;
- ``(REFUSED, word, test)``: a word of the message, and the test that matches it;
- ``(ABSENT, why)``: it does not apply, or nothing proves it.
"""

import ast
import re
import runpy
from functools import cache

import numpy as np
import pytest
from conftest import REPO
from mmengine.registry import DATASETS, init_default_scope
from pycocotools import mask as rle

from vitdense.mm.cli.predict import checked
from vitdense.mm.config.base import build_model
from vitdense.mm.config.classes import follow_checkpoint
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import model_classes
from vitdense.mm.data.shapes import draw_dataset
from vitdense.mm.errors import ConfigError
from vitdense.mm.heads.tiled import TiledDetector

RIGHT, REFUSED, ABSENT = "right", "refused", "absent"
MECHANISMS = (
    *("order of names in files", "order of names in a checkpoint", "checks", "pictures of check", "flips"),
    *("crops, mosaics, pasted objects", "joined data", "new", "tiles in predict", "tiles in test", "results"),
    *("supervision", "predict --as-dataset", "to_coco", "export", "export --with-preprocessing", "verify"),
    *("operating point", "joined models", "cached features", "metric as pycocotools"),
)
DATA, HERE, CLASSES = "tests/mm/data", "tests/mm/data/test_labels.py", "tests/mm/config/test_classes.py"
EXPORT, RESULT, EXTENSION = "tests/mm/export", "tests/results/test_result.py", "tests/extensions"
PREDICT, VERIFY = "tests/mm/cli/test_predict.py", f"{EXTENSION}/proof/test_verify_command.py"
QUERIES, PHOTOS = f"{EXPORT}/test_whole_mask_transformers.py", f"{EXTENSION}/photos"
SEGMENTS, POINT = f"{DATA}/test_panoptic.py", f"{EXTENSION}/operating_point/test_option.py"
MOSAIC = f"{DATA}/test_transforms.py::test_mosaic_has_the_masks_of_its_objects"
EVALUATED = f"{PHOTOS}/test_photos.py::test_a_program_of_photos_is_evaluated_as_its_checkpoint"
MIXED = "tests/mm/checks/test_values.py::test_steps_that_mix_boxes_alone_are_named"
PICTURES = (RIGHT, f"{EXTENSION}/report/test_report.py::test_a_picture_per_image_of_the_first_batch")
FLIPS = (RIGHT, f"{HERE}::test_flips")
JOINED = (RIGHT, f"{EXTENSION}/joined/test_joined.py::test_results_of_one_pass_equal_single_models")
CACHED = f"{EXTENSION}/features/test_features.py::test_training_with_float32_maps_equals_training_without_cache"
CACHED_FOR_ALL = (ABSENT, f"maps are stored without labels, which are read as ever: {CACHED}")
ABSENT_FIELD = f"{RESULT}::test_a_method_that_needs_an_absent_field_raises"
NO_POINT = (REFUSED, "expected a COCO metric", f"{POINT}::test_what_is_refused")

BOX = {
    "order of names in files": (RIGHT, f"{CLASSES}::test_labels_and_metrics_of_a_file_in_another_order_match_by_name"),
    "order of names in a checkpoint": (RIGHT, f"{CLASSES}::test_classes_follow_the_order_of_a_checkpoint"),
    "checks": (RIGHT, f"{DATA}/test_kinds.py::test_rows"),
    "pictures of check": PICTURES,
    "flips": FLIPS,
    "crops, mosaics, pasted objects": (RIGHT, f"{EXTENSION}/markers/test_markers.py::test_sound_pipelines"),
    "joined data": (RIGHT, f"{CLASSES}::test_joined_data_sets_with_other_classes_match_by_name"),
    "new": (RIGHT, "tests/mm/cli/test_new.py::test_boxes_without_masks"),
    "tiles in predict": (RIGHT, "tests/mm/test_predictor.py::test_tiles"),
    "tiles in test": (RIGHT, "tests/mm/heads/test_tiled.py::test_the_test_of_a_config_has_tiles"),
    "results": (RIGHT, f"{RESULT}::test_picture_of_objects", f"{RESULT}::test_files_of_pictures"),
    "supervision": (RIGHT, f"{RESULT}::test_supervision"),
    "predict --as-dataset": (RIGHT, f"{PREDICT}::test_detections_as_a_training_set"),
    "to_coco": (RIGHT, f"{RESULT}::test_coco"),
    "export": (RIGHT, f"{EXPORT}/test_whole_detectors.py::test_as_predict"),
    "export --with-preprocessing": (RIGHT, f"{PHOTOS}/test_preprocessing.py::test_boxes_are_in_pixels_of_the_photo"),
    "verify": (RIGHT, f"{VERIFY}::test_objects_are_in_the_pixels_of_a_photo_that_is_resized"),
    "operating point": (RIGHT, f"{POINT}::test_objects_are_right_as_coco_matches_them"),
    "joined models": JOINED,
    "cached features": CACHED_FOR_ALL,
    "metric as pycocotools": (RIGHT, "tests/peers/test_coco_metric.py::test_odd_files"),
}
MASK = BOX | {
    "checks": (RIGHT, f"{DATA}/test_kinds.py::test_masks_stop_a_training_only_where_it_loads_them"),
    "crops, mosaics, pasted objects": (RIGHT, MOSAIC, MIXED),
    "new": (RIGHT, "tests/mm/cli/test_new.py::test_detection"),
    "export": (RIGHT, f"{EXPORT}/test_whole_rfdetr.py::test_mask_recipe_from_its_checkpoint_to_the_runtime"),
    "joined models": (RIGHT, f"{EXTENSION}/joined/test_joined.py::test_names_masks_and_tiles"),
}
LABEL_MAP = {
    "order of names in files": (RIGHT, f"{CLASSES}::test_class_names_match_training_data_of_another_type"),
    "order of names in a checkpoint": (RIGHT, f"{CLASSES}::test_values_of_label_maps_follow_by_name"),
    "checks": (RIGHT, f"{DATA}/test_kinds.py::test_rows"),
    "pictures of check": PICTURES,
    "flips": FLIPS,
    "crops, mosaics, pasted objects": (RIGHT, f"{EXTENSION}/markers/test_markers.py::test_sound_pipelines"),
    "joined data": (RIGHT, f"{CLASSES}::test_joined_label_maps_with_other_classes_match_by_name"),
    "new": (RIGHT, "tests/mm/cli/test_new.py::test_segmentation"),
    "tiles in predict": (REFUSED, "got a segmentor", "tests/mm/test_predictor.py::test_tiles"),
    "tiles in test": (REFUSED, "got a segmentor", "tests/mm/heads/test_tiled.py::test_what_cannot_be_tiled"),
    "results": (RIGHT, f"{RESULT}::test_pictures_with_a_legend"),
    "supervision": (REFUSED, "to_supervision", ABSENT_FIELD),
    "predict --as-dataset": (RIGHT, f"{PREDICT}::test_label_maps_as_a_training_set"),
    "to_coco": (REFUSED, "to_coco", ABSENT_FIELD),
    "export": (RIGHT, f"{QUERIES}::test_a_segmentor_of_queries_is_padded_and_cut_as_mmseg_does"),
    "export --with-preprocessing": (RIGHT, EVALUATED),
    "verify": (RIGHT, f"{VERIFY}::test_the_program_itself_is_the_same"),
    "operating point": NO_POINT,
    "joined models": JOINED,
    "cached features": (RIGHT, CACHED),
    "metric as pycocotools": (ABSENT, "mmseg's IoUMetric counts pixels of labels, by mmseg's own reader"),
}
PANOPTIC = {
    "order of names in files": (RIGHT, f"{SEGMENTS}::test_labels_are_things_then_stuff_whatever_the_order_of_the_file"),
    "order of names in a checkpoint": (RIGHT, f"{HERE}::test_names_of_segments_follow_a_checkpoint"),
    "checks": (RIGHT, f"{DATA}/test_kinds.py::test_rows"),
    "pictures of check": (RIGHT, f"{HERE}::test_pictures_of_segments"),
    "flips": FLIPS,
    "crops, mosaics, pasted objects": (RIGHT, f"{HERE}::test_crops_of_segments", MIXED),
    "joined data": (RIGHT, f"{SEGMENTS}::test_joined_panoptic_data_with_other_classes_match_by_name"),
    "new": (RIGHT, f"{SEGMENTS}::test_new_panoptic_with_classes_that_the_base_does_not_have"),
    "tiles in predict": (REFUSED, "got a panoptic model", f"{HERE}::test_segments_in_tiles"),
    "tiles in test": (REFUSED, "got a panoptic model", f"{HERE}::test_segments_in_tiles"),
    "results": (RIGHT, f"{RESULT}::test_pictures_with_a_legend"),
    "supervision": (REFUSED, "to_supervision", ABSENT_FIELD),
    "predict --as-dataset": (REFUSED, "--as-dataset", f"{HERE}::test_segments_as_a_data_set"),
    "to_coco": (REFUSED, "to_coco", ABSENT_FIELD),
    "export": (
        *(RIGHT, f"{QUERIES}::test_the_command_compares_at_a_size_that_the_program_has_not_seen"),
        f"{QUERIES}::test_pmt_at_two_sizes_and_batches",
    ),
    "export --with-preprocessing": (RIGHT, f"{PHOTOS}/test_preprocessing.py::test_segments_are_in_pixels_of_the_photo"),
    "verify": (RIGHT, f"{EXTENSION}/joined/test_joined.py::test_a_proof_of_each_model"),
    "operating point": NO_POINT,
    "joined models": JOINED,
    "cached features": CACHED_FOR_ALL,
    "metric as pycocotools": (ABSENT, f"panoptic quality is panopticapi's: {SEGMENTS}"),
}
COLUMNS = {"box": BOX, "mask": MASK, "label map": LABEL_MAP, "panoptic segment": PANOPTIC}
for file in sorted(REPO.glob("tests/extensions/*/column.py")):
    COLUMNS |= runpy.run_path(str(file))["COLUMN"]


@cache
def sources_in(path):
    source = (REPO / path).read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    first = {node.name: min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in nodes}
    lines = source.splitlines()
    return {node.name: "\n".join(lines[first[node.name] - 1 : node.end_lineno]) for node in nodes}


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_mechanism_has_a_proof_for_every_kind(kind):
    assert COLUMNS[kind].keys() == {*MECHANISMS}
    for mechanism, (verdict, *of) in COLUMNS[kind].items():
        assert verdict in (RIGHT, REFUSED, ABSENT), mechanism
        assert all(of) if verdict == RIGHT else len(of) == 1 + (verdict == REFUSED), mechanism
        for node in () if verdict == ABSENT else of[verdict == REFUSED :]:
            path, name = node.split("::")
            _, where, extension, *_ = path.split("/")
            if where == "extensions" and not (REPO / "vitdense/extensions" / extension).is_dir():
                continue  # its tests went with it
            assert name in sources_in(path), f"{mechanism}: {node} does not exist"
            assert verdict == RIGHT or of[0] in sources_in(path)[name], f"{mechanism}: {node} matches no {of[0]!r}"


def test_faults_that_others_mended_have_a_test():
    nodes = re.findall(r"\| `([\w/]+\.py)::(\w+)` \|\n", (REPO / "tests/README.md").read_text(encoding="utf-8"))
    assert len(nodes) >= 40
    for path, name in nodes:
        is_gone = path.startswith("extensions/") and not (REPO / "tests" / path).exists()
        assert is_gone or name in sources_in(f"tests/{path}"), f"{path}::{name}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_dataset(tmp_path_factory.mktemp("labels") / "shapes", 1, 1, (64, 96), workers=1)


def panoptic(root):
    files = {"ann_file": "panoptic/panoptic_train.json", "data_prefix": {"img": "train/", "seg": "panoptic/train/"}}
    return {"type": "vitdense.PanopticDataset", "data_root": str(root), **files}


LOAD = [{"type": "LoadImageFromFile"}, {"type": "vitdense.LoadPanopticAnnotations"}]


def test_flips(root):
    init_default_scope("mmdet")
    plain, flipped = (
        DATASETS.build({**panoptic(root), "pipeline": [*LOAD, {"type": "RandomFlip", "prob": prob}]})[0]
        for prob in (0.0, 1.0)
    )
    for key in ("img", "gt_seg_map"):
        np.testing.assert_array_equal(flipped[key], plain[key][:, ::-1])
    assert len(plain["gt_masks"])
    np.testing.assert_array_equal(flipped["gt_masks"].to_ndarray(), plain["gt_masks"].to_ndarray()[..., ::-1])
    left, upper, right, lower = plain["gt_bboxes"].tensor.T
    np.testing.assert_array_equal(flipped["gt_bboxes"].tensor.T, [96 - right, upper, 96 - left, lower])


def test_a_mask_is_decoded_when_its_image_is_loaded(root, monkeypatch):
    data, decode, decoded = load_config("cascade_swin_nano_shapes").train_dataloader.dataset, rle.decode, []
    monkeypatch.setattr(rle, "decode", lambda codes: decoded.append(1) or decode(codes))
    init_default_scope("mmdet")
    dataset = DATASETS.build(data | dict(data_root=f"{root}/", draw=dict(num_train=1, num_val=1, image_size=(64, 96))))
    assert (len(dataset), decoded) == (1, [])
    assert 0 < len(dataset[0]["data_samples"].gt_instances.masks) <= len(decoded)


def test_crops_of_segments(root):
    init_default_scope("mmdet")
    cut = {"type": "RandomCrop", "crop_size": (50, 50), "allow_negative_crop": True}
    found = DATASETS.build({**panoptic(root), "pipeline": [*LOAD, cut]})[0]
    assert found["gt_seg_map"].shape == (50, 50)
    for label, mask in zip(found["gt_bboxes_labels"], found["gt_masks"].to_ndarray().astype(bool), strict=True):
        assert (found["gt_seg_map"][mask] == label).all()


def test_names_of_segments_follow_a_checkpoint(root):
    cfg = load_config("eomt_nano_shapes", {"data_root": str(root)})
    first, second, *others = model_classes(cfg)
    follow_checkpoint(cfg, "a.pth", [second, first, *others])
    dataset = DATASETS.build({**panoptic(root), "metainfo": cfg.train_dataloader.dataset.metainfo, "pipeline": LOAD})
    plain = DATASETS.build({**panoptic(root), "pipeline": LOAD})
    assert dataset.metainfo["classes"] == (second, first, *others)
    swapped = np.array([1, 0, *range(2, 256)])
    np.testing.assert_array_equal(dataset[0]["gt_seg_map"], swapped[plain[0]["gt_seg_map"]])


def test_pictures_of_segments(root, tmp_path):
    batch = pytest.importorskip("vitdense.extensions.report.batch")
    cfg = load_config("eomt_nano_shapes", {"data_root": str(root), "train_dataloader.num_workers": 0})
    cfg.train_dataloader.update(batch_size=1, persistent_workers=False)
    cfg.train_dataloader.dataset.draw = {"num_train": 1, "num_val": 1, "image_size": (64, 96)}
    assert len(batch.draw_batch(cfg, tmp_path)) == 1


def test_segments_in_tiles():
    with pytest.raises(ValueError, match="tiles: got a panoptic model"):
        TiledDetector(build_model(load_config("eomt_nano_shapes")), 64, 0.2, [])


def test_segments_as_a_data_set(tmp_path):
    with pytest.raises(ConfigError, match="--as-dataset"):
        checked(load_config("eomt_nano_shapes"), [tmp_path / "a.png"], tmp_path, True)
