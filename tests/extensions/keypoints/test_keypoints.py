"""Keypoints: read by name, moved with the image, checked, and measured as COCO does."""

import json
import unicodedata

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

import vitdense  # noqa: F401
from vitdense.extensions.keypoints.categories import (
    PERSON,
    Kinds,
    category_faults,
    keypoint_faults,
    kinds_of,
    metainfo_of,
    mirror_faults,
)
from vitdense.extensions.keypoints.figures import FIGURE, draw_figures
from vitdense.extensions.keypoints.metric import KeypointMetric
from vitdense.extensions.keypoints.steps import Keypoints
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.base import build_model
from vitdense.mm.config.classes import follow_points
from vitdense.mm.config.load import load_config
from vitdense.mm.data.predictions import CocoPredictions
from vitdense.mm.errors import ConfigError
from vitdense.mm.heads.tiled import TiledDetector
from vitdense.results.result import Result

NAMES = FIGURE["keypoints"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "figures"
    return draw_figures(folder, num_train=6, num_val=2, workers=1)


def test_a_mirror_by_names():
    assert [FIGURE["keypoints"][i] for i in kinds_of(FIGURE).mirrored[:5]] == [*NAMES[:3], NAMES[4], NAMES[3]]
    person = kinds_of(PERSON)
    assert person.mirrored == [0, *(i + 1 if i % 2 else i - 1 for i in range(1, 17))]  # COCO's own pairs
    assert Kinds(("LeftEye", "RightEye", "tail", "L-ear", "R-ear")).mirrored == [1, 0, 2, 4, 3]
    assert Kinds(("LShoulder", "RShoulder", "eye.left", "eye.right")).mirrored == [1, 0, 3, 2]
    assert Kinds(("left_eye", "bright eye", "eye_lid")).mirrored == [0, 1, 2]
    assert Kinds(("NOSE", "LEFT_EYE", "RIGHT_EYE", "LEFT EAR", "RIGHT EAR")).mirrored == [0, 2, 1, 4, 3]
    assert Kinds(("Left_Eye", "Right_Eye", "leftEar", "rightEar")).mirrored == [1, 0, 3, 2]
    assert Kinds(("l_eye", "r_eye", "eye (left)", "eye (right)", "leftear", "rightear")).mirrored == [1, 0, 3, 2, 5, 4]
    assert Kinds(("eyeL", "eyeR", "LEAR", "REAR", "左目", "右目")).mirrored == [1, 0, 2, 3, 4, 5]
    assert len(person.sigmas) == 17
    assert kinds_of({"keypoints": PERSON["keypoints"][::-1]}).sigmas == person.sigmas[::-1]
    assert kinds_of({"keypoints": NAMES}).sigmas == ()  # of no one else


def points(*rows):
    return Keypoints(np.float32([rows]), 100, 200, [1, 0, 2])


def test_points_move_with_the_image():
    one = points((10, 20, 2), (190, 90, 1), (0, 0, 0))
    assert one.flip("horizontal").points[0].tolist() == [[10, 90, 1], [190, 20, 2], [200, 0, 0]]
    assert one.flip("vertical").points[0].tolist() == [[190, 10, 1], [10, 80, 2], [0, 100, 0]]
    assert one.flip("diagonal").points[0].tolist() == [[190, 80, 2], [10, 10, 1], [200, 100, 0]]
    small = one.resize((33, 50))
    assert np.allclose(small.points[0, :2], [[2.5, 6.6, 2], [47.5, 29.7, 1]])  # not whole pixels
    assert (small.height, small.width) == (33, 50)
    assert np.allclose(one.rescale((400, 150)).points[0, 0], [15, 30, 2])
    cut = one.crop(np.array([5, 10, 105, 60]))
    assert cut.points[0, :2].tolist() == [[5, 10, 2], [185, 80, 0]]  # outside: not labelled
    assert (cut.height, cut.width) == (50, 100)
    assert one.expand(300, 400, 7, 9).points[0, 0].tolist() == [19, 27, 2]
    assert one.pad((128, 256)).points.tolist() == one.points.tolist()
    assert one.areas.tolist() == [2]
    assert one[np.array([], int)].points.shape == (0, 3, 3)
    with pytest.raises(ConfigError, match="leave it out"):
        one.rotate((100, 200), 30)


def of_file(folder, file, **more):
    """The options of a data set."""
    paths = {"data_root": str(folder), "ann_file": file, "data_prefix": {"img": ""}}
    return {"type": "vitdense.KeypointDataset", **paths, "pipeline": [], **more}


def dataset(root, pipeline):
    init_default_scope("mmdet")
    file, prefix = "annotations/keypoints_train.json", {"img": "train/"}
    return DATASETS.build(of_file(root, file, data_prefix=prefix, pipeline=pipeline))


LOAD = [{"type": "LoadImageFromFile"}, {"type": "vitdense.LoadKeypoints"}]


def test_the_data_of_a_file(root):
    content = json.loads((root / "annotations/keypoints_train.json").read_text())
    data = dataset(root, [*LOAD, {"type": "PackDetInputs"}])
    assert data.metainfo["classes"] == ("figure",)
    assert data.metainfo["keypoints"] == tuple(NAMES)
    assert data.metainfo["skeleton"][0] == (0, 1)
    assert len(data) == 6
    for i in range(6):
        truth = data[i]["data_samples"].gt_instances
        own = [one for one in content["annotations"] if one["image_id"] == i + 1]
        assert len(truth) == len(own)
        for points, one in zip(truth.masks.points, own):
            assert np.allclose(points.ravel(), one["keypoints"])


def test_a_flipped_figure_has_its_left_at_our_right(root):
    """As an unflipped one: figures face the viewer."""
    data = dataset(root, [*LOAD, {"type": "RandomFlip", "prob": 1.0}, {"type": "PackDetInputs"}])
    plain = dataset(root, [*LOAD, {"type": "PackDetInputs"}])
    left, right = NAMES.index("left_elbow"), NAMES.index("right_elbow")
    seen = 0
    for one in (*data, *plain):
        for figure in one["data_samples"].gt_instances.masks.points:
            if figure[[left, right], 2].all():
                seen += 1
                assert figure[left, 0] > figure[right, 0]
    assert seen > 4


CATEGORY = {"id": 3, "name": "pose", "keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2]]}


def content(*annotations, **category):
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 100, "height": 80}],
        "categories": [{**CATEGORY, **category}, {"id": 4, "name": "other"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 3, "bbox": [5, 10, 40, 40], "area": 900, "keypoints": one}
            for i, one in enumerate(annotations, 1)
        ],
    }


RIGHT = [10, 20, 2, 30, 40, 1, 0, 0, 0]
SIGMAS = ([0.1], [0.1, 0.1, 0], [0.1, 0.1, -1], [0.1, 0.1, float("nan")], ["a", 0.1, 0.1], 0.1, 0, {"nose": 0.1}, "0.1")
PAIRS = [[[1, 3]], [[-1, 0]], [[0, 1], [1, 2]], [[1, 1]], [[0, 1, 2]]]  # out of range, twice, with itself, of three
PAIRS += [[["left_eye", "eye"]], [1, 2], 5, "ab", {"left_eye": "right_eye"}, [[1, [2]]]]  # unknown; no pairs
MIRRORED = ([1, 2, 0], [0, 2], [0, 2, 1, 3], [0, 2, 2], [0, "a", 1], 3, [0, 3, 1])  # no involution


@pytest.mark.parametrize(
    ("damage", "category", "what", "grave"),
    [
        (RIGHT, {}, None, None),
        (RIGHT[:-1], {}, "are not 9 numbers", True),
        ([*RIGHT[:-1], None], {}, "no list of finite numbers", True),
        ([10, 20, 3, *RIGHT[3:]], {}, "have a flag", True),
        ([150, 20, 2, *RIGHT[3:]], {}, "outside their image", False),
        (RIGHT, {"keypoints": ["nose", "nose", "eye"]}, "the same name", True),
        (RIGHT, {"keypoints": None}, "no 'keypoints'", True),
        (RIGHT, {"skeleton": [[0, 1]]}, "skeleton", True),
        (RIGHT, {"skeleton": [1, 2]}, "skeleton", True),
        (RIGHT, {"skeleton": 5}, "skeleton", True),
        (RIGHT, {"skeleton": [["nose", [1]]]}, "skeleton", True),
        ("10, 20, 2", {}, "no list of finite numbers", True),
        ([True, *RIGHT[1:]], {}, "no list of finite numbers", True),
        ([10**400, *RIGHT[1:]], {}, "no list of finite numbers", True),
        ([0, 0, 2, *RIGHT[3:]], {}, "(0, 0)", False),
        ([x - 5 * (i % 3 == 0) - 10 * (i % 3 == 1) for i, x in enumerate(RIGHT)], {}, None, None),  # one of two is near
        *((RIGHT, {"sigmas": sigmas}, "sigmas", True) for sigmas in SIGMAS),
        *((RIGHT, {"flip_pairs": pairs}, "flip_pairs", True) for pairs in PAIRS),
        *((RIGHT, {"flip_idx": mirrored}, "flip_idx", True) for mirrored in MIRRORED),
    ],
)
def test_faults(damage, category, what, grave):
    found = list(keypoint_faults(content(RIGHT, damage, **category), ["pose"]))
    if what is None:
        assert not found
        return
    assert [fault.grave for fault in found if what in f"{fault.what} {fault}"] == [grave]
    assert not list(keypoint_faults(content(RIGHT, damage, **category), []))  # of categories that are not learned


@pytest.mark.parametrize(("scale", "what"), [(0.0, "no keypoint is labelled"), (0.01, "shares of the image")])
def test_faults_of_all(scale, what):
    rows = [v * (scale if i % 3 < 2 or not scale else 1) for i, v in enumerate(RIGHT)]
    (fault,) = keypoint_faults(content(rows, rows), ["pose"])
    assert what in str(fault)


def test_what_the_config_says_comes_first(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(content(RIGHT)))
    found = metainfo_of(tmp_path / "a.json", {"classes": ("pose",), "sigmas": [0.1] * 3})
    assert found["sigmas"] == [0.1] * 3
    assert found["keypoints"] == tuple(CATEGORY["keypoints"])
    assert metainfo_of(tmp_path / "a.json", {})["classes"] == ("pose",)  # the one that has keypoints
    for about, match in (
        ({"classes": ("other",)}, "no 'keypoints'"),
        ({"classes": ("Pose",)}, "got Pose, expected one of its categories, pose, other"),
        ({"classes": ("pose",), "keypoints": ("a", "b", "c")}, "expected a, b, c"),
    ):
        with pytest.raises(ConfigError, match=match):
            metainfo_of(tmp_path / "a.json", about)


@pytest.mark.long
@pytest.mark.parametrize(
    "stated",
    [
        {"flip_pairs": [["nose", "right_eye"]]},
        {"flip_pairs": [[2, 0], [0, 2]]},  # MMPose has both directions
        {"flip_idx": [2, 1, 0]},
    ],
)
def test_stated_pairs_come_before_names(stated, tmp_path):
    assert kinds_of({**CATEGORY, **stated}).mirrored == [2, 1, 0]
    (tmp_path / "a.json").write_text(json.dumps(content(RIGHT, **stated)))
    (tmp_path / "b.json").write_text(json.dumps(content(RIGHT)))
    init_default_scope("mmdet")
    turned = ["left_eye", "right_eye", "nose"]
    for file, about, mirrored in (
        ("a", {}, [2, 1, 0]),
        ("b", {}, [0, 2, 1]),
        ("b", stated, [2, 1, 0]),
        ("a", {"flip_pairs": []}, [0, 1, 2]),
        ("a", {"flip_idx": [1, 0, 2]}, [1, 0, 2]),
        ("a", {"keypoints": turned}, [0, 2, 1]),
        ("b", {"keypoints": turned, "flip_pairs": [[0, 2]]}, [2, 1, 0]),
    ):
        dataset = of_file(tmp_path, f"{file}.json", metainfo={"classes": ("pose",), **about})
        (one,) = DATASETS.build(dataset)[0]["instances"]
        assert one["mask"]["mirrored"] == mirrored
        cfg = Config({"train_dataloader": {"dataset": dataset}})
        follow_points(cfg, CATEGORY["keypoints"])  # of a checkpoint
        (one,) = DATASETS.build(cfg.train_dataloader.dataset)[0]["instances"]
        got, want = CATEGORY["keypoints"], about.get("keypoints", CATEGORY["keypoints"])
        pairs = {(want[i], want[other]) for i, other in enumerate(mirrored)}
        assert {(got[i], got[other]) for i, other in enumerate(one["mask"]["mirrored"])} == pairs


def test_keypoints_without_a_partner_are_said(root):
    """By a side in the name, or by places off the middle."""
    truth = json.loads((root / "annotations/keypoints_train.json").read_text())["annotations"] * 3
    blank = [name.replace("hand", "h").replace("left_h", "links").replace("right_h", "rechts") for name in NAMES]
    some = Kinds(tuple(name.replace("right_foot", "tail") for name in NAMES))
    for kinds, items in (
        (kinds_of(FIGURE), None),
        (Kinds(tuple(blank)), ("links", "rechts")),
        (some, ("left_foot",)),
        (Kinds(tuple(map(str, range(11)))), ()),
        (some._replace(flip_pairs=()), None),
    ):
        found = list(mirror_faults(kinds, truth))
        assert [fault.items for fault in found] == ([] if items is None else [items])
        assert all("flip_pairs" in str(fault) and not fault.grave for fault in found)


ORDER = [2, 0, 1]  # of another file


def in_another_order(content, change=str):
    (pose, other), places = content["categories"], [ORDER.index(i) + 1 for i in range(3)]
    pose = {**pose, "keypoints": [change(pose["keypoints"][i]) for i in ORDER]}
    pose["skeleton"] = [[places[a - 1], places[b - 1]] for a, b in pose["skeleton"]]
    if "sigmas" in pose:
        pose["sigmas"] = [pose["sigmas"][i] for i in ORDER]
    rows = [
        {**one, "keypoints": [v for i in ORDER for v in one["keypoints"][3 * i : 3 * i + 3]]}
        for one in content["annotations"]
    ]
    return {**content, "categories": [pose, other], "annotations": rows}


@pytest.mark.parametrize("change", [str, lambda name: f" {name} ", lambda name: unicodedata.normalize("NFD", name)])
def test_keypoints_match_by_name(tmp_path, change):
    about = {"keypoints": ["näse", "left_eye", "right_eye"], "sigmas": [0.1, 0.2, 0.3]}
    plain = content(RIGHT, [*RIGHT[3:], *RIGHT[:3]], **about)
    for name, made in (("a", plain), ("b", in_another_order(plain, change))):
        (tmp_path / f"{name}.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    init_default_scope("mmdet")
    files = {"train_dataloader": "a.json", "val_dataloader": "b.json"}
    cfg = Config({loader: {"dataset": of_file(tmp_path, file)} for loader, file in files.items()})
    follow_points(cfg)
    assert "metainfo" not in cfg.train_dataloader.dataset
    first, other = (DATASETS.build(cfg[loader].dataset) for loader in files)
    assert first.metainfo == other.metainfo
    assert [one["mask"] for one in first[0]["instances"]] == [one["mask"] for one in other[0]["instances"]]
    follow_points(cfg, [about["keypoints"][i] for i in ORDER])  # of a checkpoint
    turned = DATASETS.build(cfg.train_dataloader.dataset)
    assert turned.metainfo["sigmas"] == (0.3, 0.1, 0.2)
    assert turned.metainfo["skeleton"] == ((1, 2),)
    assert turned[0]["instances"][0]["mask"] == {"points": [0, 0, 0, 10, 20, 2, 30, 40, 1], "mirrored": [2, 1, 0]}
    with pytest.raises(ConfigError, match="expected tail"):
        follow_points(cfg, ["näse", "left_eye", "tail"])
    boxes, points = np.float32([[0, 0, 9, 9]] * 2), np.float32([one["mask"]["points"] for one in first[0]["instances"]])
    found = {"bboxes": boxes, "scores": np.ones(2), "labels": np.zeros(2, int), "keypoints": points.reshape(2, 3, 3)}
    for name in "ab":
        metric = KeypointMetric(ann_file=str(tmp_path / f"{name}.json"), metric="bbox")
        metric.dataset_meta = first.metainfo
        assert metric.compute_metrics([({"img_id": 1}, found)])["keypoints_mAP"] == 1


def test_predictions_have_the_order_of_the_file(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(in_another_order(content(RIGHT, flip_idx=[1, 0, 2]))))
    names, points = CATEGORY["keypoints"], np.float32([[[1, 2, 0.9], [3, 4, 0.8], [5, 6, 0.7]]])
    result = Result(np.float32([[0, 0, 9, 9]]), np.float32([0.9]), np.array([0]), keypoints=points, names=["pose"])
    for order, file in (([0, 1, 2], None), (ORDER, "b.json")):
        dataset = {"data_root": str(tmp_path), "ann_file": file} if file else {}
        meta = {"keypoints": names, "category_ids": [3], "flip_pairs": ((0, 2),)}
        made = CocoPredictions(["pose"], dataset, meta=meta)
        made.add(tmp_path / "x.png", result, (9, 9))
        made.write(tmp_path / "found.json", as_dataset=True)
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["categories"][0]["keypoints"] == [names[i] for i in order]
        assert found["categories"][0]["id"] == found["annotations"][0]["category_id"] == 3
        assert found["annotations"][0]["keypoints"][::3] == [[1, 3, 5][i] for i in order]
        mirrored = kinds_of(found["categories"][0]).mirrored
        assert [mirrored[order.index(i)] for i in (0, 1, 2)] == [order.index(i) for i in (2, 1, 0)]


def test_other_names_are_a_fault_and_another_order_is_reported(root, tmp_path):
    cfg = load_config("rfdetr_keypoints_nano_figures", {"data_root": str(root)})
    made = json.loads((root / "annotations/keypoints_val.json").read_text())
    (category,) = made["categories"]
    for names, said in ((NAMES[::-1], "another order"), ([*NAMES[1:], "tail"], "others than")):
        category["keypoints"] = names
        (tmp_path / "val.json").write_text(json.dumps(made))
        cfg.val_dataloader.dataset.update(type="vitdense.KeypointDataset", ann_file=str(tmp_path / "val.json"))
        cfg.val_dataloader.dataset.metainfo = {"classes": ("figure",)}
        cfg.val_dataloader.dataset.pop("draw", None)
        follow_points(cfg)
        found = [(said in str(fault), fault.grave) for fault in data_sets(cfg, ["val"])[0].faults(False, ())]
        assert (True, said == "others than") in found


def test_checks_of_a_config(root):
    cfg = load_config("rfdetr_keypoints_nano_figures", {"data_root": str(root)})
    for split in ("train", "val"):
        (one,) = data_sets(cfg, [split])
        assert not list(one.faults(True, ()))
        assert any("with labelled keypoints" in row for row in one.samples.rows)
    cfg.model.bbox_head.num_keypoints = 17
    cfg.val_dataloader.dataset.metainfo = {"sigmas": [], "classes": ("figure",)}
    found = [str(fault) for fault in data_sets(cfg, ["val"])[0].faults(True, ())]
    for words in ("num_keypoints is 17", "a sigma for each of 11"):
        assert any(words in one for one in found)
    cfg.val_dataloader.dataset.metainfo["sigmas"] = [0.1]
    with pytest.raises(ConfigError, match="metainfo: sigmas: got 1 items"):
        list(data_sets(cfg, ["val"])[0].faults(True, ()))


def test_a_step_that_loads_no_keypoints_is_refused(root):
    cfg = load_config("rfdetr_keypoints_nano_figures", {"data_root": str(root)})
    steps = cfg.train_dataloader.dataset.pipeline
    place = [one.type for one in steps].index("vitdense.LoadKeypoints")
    steps[place] = {"type": "LoadAnnotations", "with_bbox": True, "with_keypoints": True}
    found = [str(fault) for fault in data_sets(cfg, ["train"])[0].faults(True, ()) if fault.grave]
    assert ["pipeline: got" in one for one in found] == [True]


def test_pairs_of_joined_data_are_the_same(root, tmp_path):
    cfg = load_config("rfdetr_keypoints_nano_figures", {"data_root": str(root)})
    one = {**cfg.train_dataloader.dataset, "type": "vitdense.KeypointDataset"}
    one.pop("draw", None)
    for pairs, number in ((None, 0), (kinds_of(FIGURE).flip_pairs, 0), ([["left_foot", "right_hand"]], 1)):
        other = {**one, "metainfo": {**one.get("metainfo", {}), "flip_pairs": pairs}}
        cfg.train_dataloader.dataset = {"type": "ConcatDataset", "datasets": [one, other]}
        found = [str(fault) for part in data_sets(cfg, ["train"]) for fault in part.faults(True, ()) if fault.grave]
        assert sum("flip_pairs" in text for text in found) == len(found) == number


def test_pictures_of_a_batch(root, tmp_path):
    batch = pytest.importorskip("vitdense.extensions.report.batch")
    options = {"data_root": str(root), "train_dataloader.num_workers": 0, "train_dataloader.batch_size": 4}
    cfg = load_config("rfdetr_keypoints_nano_figures", {**options, "train_dataloader.persistent_workers": False})
    cfg.train_dataloader.dataset.type = "vitdense.KeypointDataset"
    cfg.train_dataloader.dataset.pop("draw", None)
    assert len(batch.draw_batch(cfg, tmp_path)) == 4


def test_keypoints_in_tiles():
    with pytest.raises(ValueError, match="a detector of keypoints"):
        TiledDetector(build_model(load_config("rfdetr_keypoints_nano_figures")), 64, 0.2, [])


def test_metric(root):
    metric = KeypointMetric(ann_file=str(root / "annotations/keypoints_val.json"), metric="bbox")
    content = json.loads((root / "annotations/keypoints_val.json").read_text())
    kinds = kinds_of(FIGURE)
    metric.dataset_meta = {"classes": ("figure",), **kinds._asdict()}
    results = []
    for image in content["images"]:
        own = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        boxes = np.float32([one["bbox"] for one in own]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        points = np.float32([one["keypoints"] for one in own]).reshape(-1, 11, 3)
        found = {"bboxes": boxes, "scores": np.ones(len(own)), "labels": np.zeros(len(own), int), "keypoints": points}
        results.append(({"img_id": image["id"]}, found))
    metric.evaluations = []
    values = metric.compute_metrics(results)
    assert [one.kind for one in metric.evaluations] == ["bbox", "keypoints"]  # an operating point is of the first
    assert values["keypoints_mAP"] == values["keypoints_AR"] == values["bbox_mAP"] == 1
    for _, found in results:
        found["keypoints"] = found["keypoints"] + np.float32([20, 0, 0])
    assert metric.compute_metrics(results)["keypoints_mAP"] < 0.5
    nothing = {name: x[:0] for name, x in results[0][1].items()}
    assert metric.compute_metrics([(truth, nothing) for truth, _ in results])["keypoints_mAP"] == 0
    metric.dataset_meta = {"classes": ("figure",), "sigmas": PERSON["sigmas"]}
    with pytest.raises(ConfigError, match="sigmas: got 17"):
        metric.compute_metrics(results)


def test_figures_are_drawn_as_annotated(root):
    """Points that are visible lie on strokes that are unlike a plain background; boxes are around all points."""
    content = json.loads((root / "annotations/keypoints_train.json").read_text())
    assert {one["name"] for one in content["categories"]} == {"figure"}
    assert not list(category_faults(content["categories"][0]))
    assert not list(keypoint_faults(content, ["figure"]))
    for one in content["annotations"]:
        x, y, w, h = one["bbox"]
        figure = np.array(one["keypoints"]).reshape(-1, 3)
        figure = figure[figure[:, 2] > 0, :2]
        assert ((figure >= (x, y)) & (figure <= (x + w, y + h))).all()
    image = cv2.imread(str(root / "train" / content["images"][0]["file_name"]))
    assert image.shape == (256, 256, 3)
