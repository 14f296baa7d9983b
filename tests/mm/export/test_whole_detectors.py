"""Whole detectors as programs against mmdet's own `predict`."""

from importlib.util import find_spec

import onnx
import pytest
import torch
from conftest import needs_research
from mmdet.models.layers import multiclass_nms
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.prior_generators import MlvlPointGenerator
from random_detector import assert_finds_as_predict

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program
from vitdense.export.select import Found, best, highest, suppress
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.detectors import FixedRoIExtractor, fix
from vitdense.mm.export.tasks import Detector
from vitdense.runtime import ENGINES

pytestmark = pytest.mark.long


def detector(name, **test_cfg):
    torch.manual_seed(0)
    cfg = load_config(name if "::" in name else f"{name}_swin_nano_shapes")
    model = build_model(cfg).eval()
    for part in (getattr(model, "roi_head", None), getattr(model, "bbox_head", None)):
        if part is not None:
            part.test_cfg.update(test_cfg)
    if name == "sparse_rcnn":
        model.rpn_head.init_proposal_bboxes.weight.data[::2].abs_()  # most of the others are inverted
    return model


NAMES = ["cascade", "cascade_rcnn", "atss", "sparse_rcnn", pytest.param("htc", marks=needs_research)]
OF_MMDET = [
    "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py",
    "mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py",
    "mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py",
    "mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py",
]


@pytest.mark.parametrize("name", [*NAMES, *OF_MMDET])
def test_as_predict(name):
    assert_finds_as_predict(detector(name, score_thr=0.01))


class Steps(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        convs = [torch.nn.Conv2d(3, width, 3, 32 >> i, 1) for i, width in enumerate(channels[::-1])]  # the last: 32
        self.convs = torch.nn.ModuleList(convs[::-1])

    def forward(self, image):
        return [conv(image) for conv in self.convs]


def test_a_program_of_all_sizes_has_no_branches(tmp_path):
    model = detector("atss", score_thr=0.02)
    head = model.bbox_head
    model.backbone, model.neck = Steps([head.in_channels] * 2), torch.nn.Identity()  # maps of strides 16 and 32
    head.cls_convs, head.reg_convs, head.scales = head.cls_convs[:1], head.reg_convs[:1], head.scales[:2]
    anchors = head.prior_generator
    anchors.strides, anchors.base_anchors = anchors.strides[1:3], anchors.base_anchors[1:3]
    model = Detector(model).eval()
    program = export_program(model, torch.zeros(2, 3, 160, 192))
    path = tmp_path / "atss.onnx"
    save_onnx(program, path, ["boxes", "scores", "labels"])
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert not kinds & {"If", "Loop", "Scan", "GridSample", "NonZero"}
    image = torch.randn(3, 3, 97, 70, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(image)
    for engine in filter(find_spec, ENGINES):
        boxes, scores, labels = ENGINES[engine](path, threads=1).run(image.numpy())
        torch.testing.assert_close(torch.from_numpy(scores), want["scores"], atol=1e-5, rtol=0)
        assert boxes.shape == (3, 100, 4)
        assert (labels >= -1).all()


def test_a_program_of_sparse_rcnn(tmp_path):
    """Two of its six stages, for one size. A file without its constants was once written, which no runtime opened."""
    model = detector("sparse_rcnn")
    head = model.roi_head
    head.bbox_head, head.bbox_roi_extractor = head.bbox_head[:2], head.bbox_roi_extractor[:2]
    model.backbone, model.neck = Steps([head.bbox_roi_extractor[0].out_channels] * 4), torch.nn.Identity()
    torch.nn.init.uniform_(model.rpn_head.init_proposal_bboxes.weight, 0.2, 0.8)
    fix(model)
    model = Detector(model).eval()
    assert not model.any_size
    image = torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(image)
    path = tmp_path / "sparse.onnx"
    save_onnx(export_program(model, image, dynamic=False), path, [*want])
    for engine in filter(find_spec, ENGINES):
        boxes, scores, labels = ENGINES[engine](path, threads=1).run(image.numpy())
        torch.testing.assert_close(torch.from_numpy(scores), want["scores"], atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.from_numpy(boxes), want["boxes"], atol=1e-3, rtol=0)
        assert (labels == want["labels"].numpy()).all()


class Points(torch.nn.Module):
    def forward(self, image):
        size = tuple(image[..., ::64, ::64].shape[2:])
        return MlvlPointGenerator([64]).grid_priors([size], device=image.device)[0]


def test_points_of_all_sizes():
    program = export_program(Points().eval(), torch.zeros(2, 3, 160, 192)).module()
    for image in (torch.zeros(1, 3, 40, 50), torch.zeros(1, 3, 300, 90)):
        assert torch.equal(program(image), Points()(image))


def test_nms_of_a_batch_equals_mmdet():
    make = torch.Generator().manual_seed(0)
    corner, side = torch.rand(3, 200, 2, generator=make) * 300, 20 + torch.rand(3, 200, 2, generator=make) * 60
    boxes = torch.cat([corner, corner + side], -1)  # [3, 200, 4]
    scores = torch.rand(3, 200, 5, generator=make)  # [3, 200, classes]
    flat, pair = best(torch.where(scores > 0.3, scores, -1.0).flatten(1), 1000)
    candidates = Found(boxes.gather(1, (pair // 5)[..., None].expand(-1, -1, 4)), flat, pair % 5)
    found = suppress(candidates, 5, 0.5, 60)
    for i in range(3):
        with_background = torch.cat([scores[i], torch.zeros(200, 1)], 1)
        dets, labels = multiclass_nms(boxes[i], with_background, 0.3, {"type": "nms", "iou_threshold": 0.5}, 60)
        assert torch.equal(found.boxes[i], dets[:, :4])
        assert torch.equal(found.scores[i], dets[:, 4])
        assert torch.equal(found.labels[i], labels)


class Suppressed(torch.nn.Module):
    def forward(self, image):
        corner, scores = image[:, 0, :, :2], image[:, 0, :, 2]
        return suppress(Found(torch.cat([corner, corner + 9], -1), scores, torch.zeros_like(scores).long()), 1, 0.5, 5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_programs_keep_one_box_or_none(dynamic):
    image = torch.zeros(2 if dynamic else 1, 3, 40, 40)
    program = export_program(Suppressed().eval(), image, dynamic).module()
    for number in (0, 1, 2):
        one = torch.full((1, 3, 40, 40), -1.0)  # boxes of one place without an object
        for i in range(number):
            one[0, 0, i, :3] = torch.tensor([50.0 * i, 0.0, 0.9])
        assert (program(one)[1] > 0).sum() == number


@pytest.mark.parametrize("number", [1, 40, 300])
def test_of_equal_scores_the_first(number):
    scores = torch.randint(-1, 9, (3, 300), generator=torch.Generator().manual_seed(0)) / 8
    values, index = highest(scores, number)
    want = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, want.values[:, :number])
    assert torch.equal(index, want.indices[:, :number])


def test_of_equal_scores_the_first_in_openvino(tmp_path):
    pytest.importorskip("openvino")

    class Best(torch.nn.Module):
        def forward(self, image):
            return best(image[:, 0].flatten(1), 50)

    image = torch.randint(0, 5, (2, 3, 40, 60)).float()
    save_onnx(export_program(Best().eval(), image, dynamic=False), tmp_path / "best.onnx")
    want = image[:, 0].flatten(1).sort(dim=1, descending=True, stable=True).indices[:, :50]
    assert torch.equal(torch.from_numpy(ENGINES["openvino"](tmp_path / "best.onnx").run(image.numpy())[1]), want)


def test_fewer_boxes_than_outputs():
    scores, index = best(torch.tensor([[0.5, -1.0, 0.7]]), 5)
    assert scores.tolist() == [[pytest.approx(0.7), 0.5, -1, -1, -1]]
    assert index.tolist() == [[2, 0, 0, 0, 0]]
    found = suppress(Found(torch.rand(1, 3, 4), torch.full((1, 3), -1.0), torch.zeros(1, 3).long()), 2, 0.5, 4)
    assert found.scores.tolist() == [[0] * 4]
    assert found.labels.tolist() == [[-1] * 4]


@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_features_without_shapes_of_the_boxes(ratio):
    layer = {"type": "RoIAlign", "output_size": 7, "sampling_ratio": ratio}
    extractor = SingleRoIExtractor(layer, out_channels=8, featmap_strides=[4, 8, 16])
    maps = [torch.randn(2, 8, 256 // s, 320 // s) for s in (4, 8, 16)]
    torch.manual_seed(0)
    corner = torch.rand(80, 2) * 20
    rois = torch.cat([torch.arange(80)[:, None] % 2, corner, corner + torch.rand(80, 1) * 300], 1)
    rois[::9, 3] = rois[::9, 1]  # without area
    assert len(extractor.map_roi_levels(rois, 3).unique()) == 3
    assert torch.equal(FixedRoIExtractor(extractor)(maps, rois), extractor(maps, rois))


class Read(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = {"type": "RoIAlign", "output_size": 2, "sampling_ratio": 0}
        self.extractor = FixedRoIExtractor(SingleRoIExtractor(layer, out_channels=3, featmap_strides=[4, 8]))

    def forward(self, image):
        rois = torch.tensor([[0, 3, 4, 20, 30], [0, 9, 5, 9, 20], [0, 32, 40, 32, 40], [0, 0, 0, 1e-9, 20]])
        return self.extractor([image[..., ::4, ::4], image[..., ::8, ::8]], rois)


def test_boxes_without_area_in_programs(tmp_path):
    image = torch.randn(1, 3, 32, 40)
    save_onnx(export_program(Read().eval(), image, dynamic=False), tmp_path / "read.onnx")
    for engine in filter(find_spec, ENGINES):
        got = torch.from_numpy(ENGINES[engine](tmp_path / "read.onnx").run(image.numpy())[0])
        torch.testing.assert_close(got, Read()(image), atol=1e-6, rtol=0)


def test_heads_that_cannot_be_exported_are_named():
    with pytest.raises(ConfigError, match=r"PAAHead.*--maps"):
        Detector(detector("mmdet::paa/paa_r50_fpn_1x_coco.py"))
    with pytest.raises(ConfigError, match=r"soft_nms.*model\.test_cfg\.rcnn\.nms\.type=nms"):
        Detector(detector("cascade", nms={"type": "soft_nms", "iou_threshold": 0.5}))
