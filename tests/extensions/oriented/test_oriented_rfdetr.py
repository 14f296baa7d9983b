"""RF-DETR with oriented boxes: Gaussians, losses, predictions, and everything that a trained model does."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData

import vitdense
from vitdense.__main__ import main
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.extensions.oriented import boxes as convention
from vitdense.extensions.oriented.drawn import draw_turned
from vitdense.extensions.oriented.head import OrientedRFDETRHead, quality, rectangles, rows_of, terms
from vitdense.extensions.oriented.labels import corner_faults
from vitdense.extensions.oriented.ops import box_iou_rotated, divergence, gaussian, kl_divergence
from vitdense.extensions.oriented.visualizer import OrientedVisualizer
from vitdense.mm.data.coco import parse
from vitdense.mm.heads.rfdetr.head import RFDETRHead
from vitdense.mm.registry import METRICS
from vitdense.results.result import Result
from vitdense.results.tiles import detect
from vitdense.runtime import BOUNDS, Output, Program, changes, compare_results, turned_iou

MINOR = int(torch.__version__.split(".")[1])  # of torch 2
SMALL = dict(num_classes=3, in_channels=32, num_queries=9, num_groups=2, num_layers=2, num_heads=(2, 4), ffn_dims=32)


def some(number, seed=0):
    values = torch.rand(number, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low = torch.tensor([60.0, 60, 25, 5, -90], dtype=torch.float64)
    return convention.regular(low + values * torch.tensor([80.0, 80, 40, 15, 180], dtype=torch.float64))


def test_rows_are_rectangles():
    boxes = some(500)
    boxes[:100, 3] = boxes[:100, 2]  # squares
    boxes = convention.regular(boxes)
    found = rectangles(rows_of(convention.corners(boxes)))
    torch.testing.assert_close(found[100:], boxes[100:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[:, :4], boxes[:, :4], rtol=1e-9, atol=1e-9)
    apart = (found[:100, 4] - boxes[:100, 4] + 45) % 90 - 45  # the sides of a square are equal
    assert apart.abs().max() < 1e-6
    assert ((found[:, 4] >= -90) & (found[:, 4] < 90)).all()


def test_a_turned_square_is_not_a_straight_one():
    """Its Gaussian is; its phase is not, and matters the less the longer the object is."""
    angles = torch.tensor([0.0, 20.0, 45.0, 90.0], dtype=torch.float64)
    losses = []
    for height in (20.0, 5.0):
        boxes = torch.tensor([50.0, 40.0, 20.0, height, 0.0], dtype=torch.float64).repeat(4, 1)
        rows = rows_of(convention.corners(boxes))
        turned = boxes.clone()
        turned[:, 4] = angles
        found = torch.cat([rows[:, :5], rows_of(convention.corners(turned))[:, 5:]], -1)
        losses.append(terms(found, torch.cat([rows, torch.ones(4, 1, dtype=torch.float64)], -1), None)["phase"])
    square, long = losses
    assert square[0] < 1e-9
    assert square[3] < 1e-9
    assert square[2] == pytest.approx(1.0)
    assert square[1] == pytest.approx((1 - math.cos(math.radians(80))) / 2)
    assert (long < 0.25).all()


def test_divergence_is_the_same_in_every_frame():
    boxes, others = some(40), some(40, seed=1)
    shrunk = torch.tensor([1 / 300, 1 / 200], dtype=torch.float64)
    scaled = [gaussian(convention.corners(x) * shrunk) for x in (boxes, others)]
    want = kl_divergence(boxes, others)
    torch.testing.assert_close(divergence(*scaled), want, rtol=1e-2, atol=1e-3)  # by the least variance


def test_quality_is_the_iou_of_the_rectangles():
    boxes, others = some(40), some(40, seed=1)
    others[:, :2] = boxes[:, :2] + 3
    size = torch.tensor([300.0, 150.0], dtype=torch.float64)
    found, wanted = (rows_of(convention.corners(x) / size) for x in (boxes, others))
    wanted = torch.cat([wanted, torch.full((40, 1), 2.0, dtype=torch.float64)], -1)
    torch.testing.assert_close(quality(found, wanted), box_iou_rotated(boxes, others, aligned=True))
    assert (terms(found, wanted, None)["turned"] < 1).all()
    assert terms(wanted[:, :7], wanted, None)["turned"].max() < 1e-6


def samples(boxes, size):
    """mmdet's sample of an image with oriented boxes."""
    corners = convention.corners(boxes).flatten(1).float()
    instances = InstanceData(bboxes=corners, labels=torch.arange(len(boxes)) % 3)
    meta = {"img_shape": size, "ori_shape": size, "scale_factor": (1.0, 1.0)}
    return DetDataSample(gt_instances=instances, metainfo=meta)


@pytest.fixture
def head():
    return OrientedRFDETRHead(**SMALL)


def test_losses_have_gradients_also_without_objects(head):
    x = torch.randn(2, 32, 8, 12)
    found = head.loss([x], [samples(some(4), (128, 192)), samples(some(0), (128, 192))])
    assert {"loss_turned", "d0.loss_turned", "enc_loss_turned"} <= found.keys()
    sum(found.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    for name in ("shape", "first_shapes.0", "first_shapes.1"):
        assert head.get_submodule(name).layers[-1].weight.grad.abs().sum() > 0


def test_a_batch_of_two_is_two_of_one(head):
    x = torch.randn(2, 32, 8, 12, generator=torch.Generator().manual_seed(1))
    data = [samples(some(3, seed), (128, 192)) for seed in (0, 1)]
    both = head.loss([x], data)
    alone = [head.loss([x[i : i + 1]], data[i : i + 1]) for i in (0, 1)]
    for name, value in both.items():
        torch.testing.assert_close(value, (alone[0][name] + alone[1][name]) / 2, rtol=1e-4, atol=1e-5)


def test_at_the_start_a_box_is_not_turned(head):
    """Also where an image is stretched: corners in the file's pixels are those of the straight box."""
    head.eval()
    sample = samples(some(0), (128, 192))
    sample.set_metainfo({"scale_factor": (0.5, 2.0), "ori_shape": (64, 384)})
    (found,) = head.predict([torch.randn(1, 32, 8, 12)], [sample], rescale=True)
    inside = (found.corners >= 0).all(-1).all(-1) & (found.corners <= torch.tensor([384.0, 64.0])).all(-1).all(-1)
    straight = torch.cat([found.corners.amin(1), found.corners.amax(1)], -1)
    assert inside.any()
    torch.testing.assert_close(straight[inside], found.bboxes[inside], rtol=1e-3, atol=1e-2)


def test_a_turned_object_in_a_stretched_image_is_found_turned():
    """What a query predicts of a rectangle that stretching makes a parallelogram is the rectangle of the photo."""
    box = torch.tensor([100.0, 60.0, 80.0, 20.0, 30.0], dtype=torch.float64)
    size = torch.tensor([200.0, 120.0], dtype=torch.float64)
    of_square = rows_of(convention.corners(box) / size)  # as in any rectangle to which the image is resized
    corners = OrientedRFDETRHead.shown(None, of_square, size)
    torch.testing.assert_close(convention.from_corners(corners.double()), box, rtol=1e-4, atol=1e-3)


def test_weights_of_coco_serve_all_but_the_shapes(head):
    straight = RFDETRHead(**SMALL)
    model = torch.nn.ModuleDict({"bbox_head": head})
    state = {f"bbox_head.{key}": value for key, value in straight.state_dict().items()}
    fresh = [r"bbox_head\.(shape|first_shapes)\..+"]
    loaded, report = fit_whole(model, {"state_dict": state}, fresh)
    assert {key.split(".")[1] for key in report.kept_at_init} == {"shape", "first_shapes"}
    assert all(torch.equal(loaded[key], value) for key, value in state.items())


def evaluated(file, turn=0.0, **options):
    """The metric of a file whose boxes, turned, are found, and its values."""
    content = parse(Path(file))
    metric = METRICS.build(dict(type="vitdense.OrientedMetric", ann_file=file, **options))
    metric.dataset_meta, metric.evaluations = {"classes": [one["name"] for one in content["categories"]]}, []
    for image in content["images"]:
        own = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        points = torch.tensor([one["segmentation"][0] for one in own], dtype=torch.float64).reshape(-1, 4, 2)
        boxes = convention.from_corners(points)
        boxes[:, 4] += turn
        found = {
            "bboxes": convention.enclosing(boxes).float(),
            "corners": convention.corners(boxes),
            "scores": torch.linspace(0.9, 0.5, len(own)),
            "labels": torch.tensor([one["category_id"] - 1 for one in own], dtype=torch.int64),
        }
        shape = (image["height"], image["width"])
        metric.process({}, [{"img_id": image["id"], "ori_shape": shape, "pred_instances": found}])
    return metric, metric.evaluate(len(content["images"]))


def test_metric(tmp_path):
    draw_turned(tmp_path / "own", num_train=1, num_val=4, workers=1)
    file = str(tmp_path / "own/annotations/oriented_val.json")
    assert evaluated(file, outfile_prefix=str(tmp_path / "out"))[1]["coco/oriented_mAP"] == 1.0
    assert evaluated(file, turn=90.0)[1]["coco/oriented_mAP"] < 0.5
    lines = [line for path in tmp_path.glob("out.Task1_*.txt") for line in path.read_text().splitlines()]
    assert len(lines) == len(parse(Path(file))["annotations"])


def result(**changes):
    corners = np.float32([[[20, 10], [50, 40], [44, 46], [14, 16]]])
    fields = dict(boxes=np.float32([[14, 10, 50, 46]]), scores=np.float32([0.9]), labels=np.int64([0]), corners=corners)
    return Result(**{**fields, "image": np.zeros((60, 80, 3), np.uint8), "names": ["ship"], **changes})


def test_results(monkeypatch):
    one = result()
    assert repr(one) == "Result(60x80: 1 object, corners; ship 0.90)"
    (row,) = one.to_coco()
    assert row["segmentation"] == [one.corners[0].ravel().tolist()]
    drawn = np.asarray(one.plot())
    assert drawn[25, 35].any()  # on a turned side
    assert not drawn[44, 47].any()  # at a corner of the straight box
    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=lambda *_, **options: options))
    np.testing.assert_array_equal(one.to_supervision()["data"]["xyxyxyxy"], one.corners)


def test_programs_are_compared_by_corners():
    want = result()
    same, said = compare_results([(want, want)], BOUNDS["float32"])
    assert same
    assert "corners within 0.0e+00" in said
    rolled = result(corners=np.roll(want.corners, 1, 1))
    assert compare_results([(rolled, want)], BOUNDS["float32"])[0]
    assert changes([(rolled, want)])[0] == 0
    moved = result(corners=want.corners + np.float32([[[0.2, 0]] * 4]))  # as coordinates in half precision
    assert not compare_results([(moved, want)], BOUNDS["float32"])[0]
    far = result(corners=want.corners + np.float32([[[60, 0]] * 4]))
    across = result(corners=want.corners[:, :, ::-1] * [1, -1] + [7, 60])  # turned by 90 degrees in its straight box
    for wrong in (far, across):
        assert changes([(wrong, want)])[0] == 2


def test_turned_iou_of_programs_is_that_of_the_metric():
    boxes, others = some(200), some(200, seed=1)
    others[:100, :2] = boxes[:100, :2]
    others[:20] = boxes[:20]
    got = [turned_iou(*(convention.corners(x).numpy() for x in pair)) for pair in zip(boxes, others)]
    np.testing.assert_allclose(got, box_iou_rotated(boxes, others, aligned=True), atol=1e-12)


def test_tiles_join_oriented_boxes():
    """An object that each of two tiles sees whole is one; one that both cut is the rectangle around its pieces."""
    image = np.zeros((100, 180, 3), np.uint8)
    whole = convention.corners(torch.tensor([90.0, 30, 12, 6, 35])).numpy()
    slope = math.tan(math.radians(4))

    def find(tiles):
        outs = []
        for left, (start, end), _ in zip((0, 80), ((15, 100), (80, 165)), tiles):
            middle = (start + end) / 2
            piece = [middle, 75 + (middle - 90) * slope, end - start, 10, 4]
            piece = convention.corners(torch.tensor(piece, dtype=torch.float32)).numpy()
            corners = np.float32([whole, piece]) - np.float32([left, 0])
            boxes = np.concatenate([corners.min(1), corners.max(1)], 1).clip(0, 100)
            outs.append(Output(boxes, np.float32([0.9, 0.8]), np.int64([0, 0]), corners=corners))
        return outs

    found = detect(image, find, side=100, overlap=0.2)
    assert len(found) == 2
    np.testing.assert_allclose(found.corners[0], whole, atol=1e-4)
    x, _, w, h, angle = convention.from_corners(torch.tensor(found.corners[1])).tolist()
    assert abs(x - 90) < 3
    assert w > 140
    assert h < 20
    assert abs(angle - 4) < 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oriented")
    draw_turned(folder / "own", num_train=8, num_val=4, workers=1)
    options = [f"data_root={folder}/own/", "train_dataloader.batch_size=2", "train_dataloader.num_workers=0"]
    options += [f"{split}_dataloader.dataset.draw={{'num_train':8,'num_val':4}}" for split in ("train", "val", "test")]
    options += ["train_dataloader.persistent_workers=False", "val_dataloader.num_workers=0"]
    options += ["val_dataloader.persistent_workers=False"]
    command = ["train", "rfdetr_oriented_nano_shapes", "--work-dir", str(folder / "work"), "--iters", "4"]
    assert main([*command, "--image-size", "128", "--cfg-options", *options]) == 0
    return folder


@pytest.mark.skipif(MINOR < 8, reason="torch 2.7 finds no program of all sizes")
def test_from_the_training_to_the_runtime(trained):
    work = str(trained / "work")
    for tiles in ([], ["--tiles", "96"]):
        assert main(["test", work, "--out", str(trained / "metrics.json"), *tiles]) == 0
        assert "coco/oriented_mAP_50" in json.loads((trained / "metrics.json").read_text())
    photos = sorted(map(str, (trained / "own/val").iterdir()))
    model = vitdense.load(work)
    found = model(photos[0], score_thr=0.0)
    assert found.corners.shape == (len(found), 4, 2)
    program = str(trained / "model.onnx")
    assert main(["export", work, "--to", "onnx", "--images", *photos[:2], "--out", program]) == 0
    assert main(["verify", program]) == 0
    got = Program(program)(np.asarray(found.image), score_thr=0.0)
    assert compare_results([(got, found)], BOUNDS["float32"])[0]
    assert np.abs(got.corners[0] - found.corners[0]).max() < 1e-2


@pytest.mark.skipif(MINOR < 8, reason="torch 2.7 finds no program of all sizes")
def test_a_program_of_photos(trained):
    photos, program = sorted(map(str, (trained / "own/val").iterdir())), str(trained / "photos.onnx")
    command = ["export", str(trained / "work"), "--to", "onnx", "--with-preprocessing", "--no-proof", "--images"]
    assert main([*command, *photos[:2], "--out", program]) == 0
    found = vitdense.load(trained / "work")(photos[0], score_thr=0.0)
    assert compare_results([(Program(program)(found.image, score_thr=0.0), found)], BOUNDS["float32"])[0]


def test_predictions_as_a_data_set(trained, capsys):
    photos, out = str(trained / "own/val"), trained / "found"
    command = ["predict", str(trained / "work"), photos, "--as-dataset", str(out), "--score-thr", "0"]
    assert main(command) == 0
    assert "new detection --oriented --train" in "".join(capsys.readouterr())
    content = parse(next(out.rglob("*.json")))
    assert len(content["annotations"]) > 0
    names = [one["name"] for one in content["categories"]]
    assert not any(fault.grave for fault in corner_faults(content, names))


def test_joined_models(trained):
    join = pytest.importorskip("vitdense.extensions.joined.model")
    first, *others = (vitdense.load(trained / "work", score_thr=0.0) for _ in range(3))
    photo = first.reader.pixels(str(next((trained / "own/val").iterdir())))
    want = first(photo)
    assert join.Joined(dict(zip("ab", others)))(photo) == {"a": want, "b": want}


def test_pictures(trained):
    """mmdet's pictures have polygons: a corner of the straight box stays as it is."""
    pytest.importorskip("vitdense.extensions.report")
    config, folder = str(trained / "work/rfdetr_oriented_nano_shapes.py"), trained / "page"
    assert main(["check", config, "--report", str(folder), "--pictures", str(folder)]) == 0
    assert len([*folder.glob("train_*.png")]) == 2
    options = ["default_hooks.visualization.draw=True", "default_hooks.visualization.interval=1"]
    assert main(["test", str(trained / "work"), "--cfg-options", *options]) == 0
    image = np.full((60, 80, 3), 9, np.uint8)
    corners = torch.tensor([[20.0, 10, 50, 40, 44, 46, 14, 16]])
    of_truth = InstanceData(bboxes=corners, labels=torch.tensor([0]))
    found = InstanceData(bboxes=torch.tensor([[14.0, 10, 50, 46]]), corners=corners.view(1, 4, 2))
    found.set_metainfo({})
    found.labels, found.scores = torch.tensor([0]), torch.tensor([0.9])
    for instances in (of_truth, found):
        drawn = OrientedVisualizer()._draw_instances(image, instances, ["ship"], [(255, 0, 0)])
        assert (drawn[25, 35] != 9).any()  # on a side
        assert (drawn[44, 17] == 9).all()  # in a corner of the straight box
        assert instances.bboxes.any()


def test_report_and_operating_point(trained):
    """Both judge the turned boxes: with other angles, long objects are wrong."""
    errors, find = (pytest.importorskip(f"vitdense.extensions.{x}") for x in ("errors.objects", "operating_point.find"))
    file, folder = str(trained / "own/annotations/oriented_val.json"), trained / "report"
    for turn in (0.0, 50.0):
        judged = errors.Judged(evaluated(file, turn)[0].evaluations[1], {})
        matches, tide = find.match(judged.evaluation), judged.evaluation.made.tide_errors()["counts"]
        assert matches.right.tolist() == (judged.kinds == "right").tolist()
        assert matches.truths.sum() == len(matches.right) == len(parse(Path(file))["annotations"])
        assert (tide["Loc"] == 0) == matches.right.all() == (turn == 0)
        assert (judged.kinds == "Loc").sum() == tide["Loc"]
    assert main(["test", str(trained / "work"), "--report", str(folder)]) == 0
    said = json.loads((folder / "metrics.json").read_text())
    assert said["obb"]["table"][0]["mAP"] == pytest.approx(said["metrics"]["coco/oriented_mAP"], abs=1e-3)
