"""Coordinates are float32 under autocast: with equal outputs of layers, boxes and losses equal float32."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import HAS_RESEARCH
from mmcv.ops import multi_scale_deform_attn
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS
from mmengine.structures import InstanceData
from torch import Tensor, nn

from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.model import use_rle
from vitdense.mm.config.query import nodes
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.tasks import Detector
from vitdense.mm.guard import guard_model

pytestmark = pytest.mark.long

SIZE, PADDED = (64, 1333), (64, 1344)  # far to the right, where bfloat16 has every eighth pixel
RECIPES = (
    *("atss_swin_nano_shapes", "cascade_rcnn_swin_nano_shapes", "cascade_swin_nano_shapes"),
    *(("htc_swin_nano_shapes", "reppoints_v2_swin_nano_shapes") if HAS_RESEARCH else ()),
    *("sparse_rcnn_swin_nano_shapes", "dino_swin_nano_shapes"),
    *("rfdetr_nano_shapes", "rfdetr_seg_nano_shapes", "mask2former_swin_nano_shapes"),
)
# Of a query and one of 8 classes.
NUM_RESULTS = {"sparse_rcnn_swin_nano_shapes": 320, "dino_swin_nano_shapes": 2400, "rfdetr_nano_shapes": 1600}
NUM_RESULTS |= {"mask2former_swin_nano_shapes": 160, "eomt_nano_shapes": 160}


class Maps(nn.Module):
    def __init__(self, maps: list[Tensor]) -> None:
        super().__init__()
        self.maps = maps

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.maps)


class Layers:
    """Records the outputs of the layers of a model in one pass, and gives them in float32 in the next."""

    def __init__(self, model: nn.Module) -> None:
        self.outputs, self.place = [], None
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(self._answer, prepend=True)

    def _answer(self, layer: nn.Module, args: tuple, output: Tensor) -> Tensor:
        if self.place is None:
            self.outputs.append(output.detach())
            return output
        self.place += 1
        recorded = self.outputs[self.place - 1]
        assert recorded.shape == output.shape
        return recorded.float()


def detector(name: str, tmp_path, build=build_model) -> nn.Module:
    cfg = load_config(name, work_dir=str(tmp_path))
    for node in nodes([cfg.model.test_cfg]):
        if node.get("type") == "nms":
            node.iou_threshold = 1.0
    torch.manual_seed(0)
    model = build(cfg).eval()
    with torch.no_grad():
        maps = model.backbone(torch.randn(1, 3, *PADDED))
        for parameter in (p for name, p in model.named_parameters() if p.ndim > 1 and "init_proposal" not in name):
            deviation = (0.1 if parameter.shape[0] == 4 else 1.5) / parameter[0].numel() ** 0.5
            parameter.copy_(torch.randn(parameter.shape) * deviation)
    model.backbone = Maps([x.bfloat16().float() if isinstance(x, Tensor) else x for x in maps])
    return model


def sample(padded: bool) -> DetDataSample:
    size = PADDED if padded else SIZE  # some see whole maps only
    shapes = {"img_shape": size, "ori_shape": size, "pad_shape": PADDED, "batch_input_shape": PADDED}
    one = DetDataSample(metainfo={**shapes, "scale_factor": (1.0, 1.0)})
    masks = np.zeros((2, *PADDED), np.uint8)
    masks[0, 5:40, 1100:1290] = masks[1, 9:60, 700:731] = 1
    boxes = torch.tensor([[1100.3, 5.1, 1289.7, 39.6], [700.2, 9.4, 730.9, 59.9]])
    truth = {"bboxes": boxes, "labels": torch.tensor([0, 2]), "masks": BitmapMasks(masks, *PADDED)}
    one.gt_instances, one.ignored_instances = InstanceData(**truth), InstanceData(bboxes=boxes[:0])
    return one


def of_both(model: nn.Module, name: str, run: Callable) -> list:
    """Results of `run` under autocast to bfloat16 and, with the same outputs of layers, in float32."""
    layers, found = Layers(model), []
    for context in (torch.autocast("cpu", torch.bfloat16), nullcontext()):
        torch.manual_seed(1)
        with context:
            found.append(run(torch.zeros(1, 3, *PADDED), [sample(name.startswith("rfdetr"))]))
        layers.place = 0
    return found


def build_with_hooks(cfg: Config) -> nn.Module:
    """As mm's own tools do: they have the runner of mmengine, and call its hooks."""
    model = MODELS.build(cfg.model)
    for hook in cfg.default_hooks.values():
        if hook.type == "vitdense.GuardModelHook":
            HOOKS.build(hook).before_run(SimpleNamespace(model=model))
    return model


BUILDS = [*((name, build_model) for name in RECIPES), ("cascade_rcnn_swin_nano_shapes", build_with_hooks)]


@pytest.mark.parametrize(("name", "build"), BUILDS)
@torch.no_grad()
def test_boxes_equal_float32(name, build, tmp_path):
    model = detector(name, tmp_path, build)
    (half,), (full,) = of_both(model, name, lambda x, samples: model(x, samples, mode="predict"))
    half, full = half.pred_instances, full.pred_instances
    assert len(half) == len(full) > 5
    assert (half.bboxes[:, 2:] >= half.bboxes[:, :2]).all()  # also of random points and proposals, many inverted
    assert half.bboxes.dtype == torch.float32
    assert full.bboxes[:, 2].max() > 1100
    torch.testing.assert_close(half.bboxes, full.bboxes, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", [name for name in RECIPES if "mask2former" not in name])
def test_losses_of_boxes_equal_float32(name, tmp_path):
    model = detector(name, tmp_path).train()
    half, full = of_both(model, name, lambda x, samples: model(x, samples, mode="loss"))
    keys = [key for key in full if any(word in key for word in ("bbox", "iou", "pts", "offset"))]
    assert keys
    torch.testing.assert_close(*([losses[key] for key in keys] for losses in (half, full)), atol=1e-5, rtol=1e-4)


def test_features_equal_float32_rois(tmp_path):
    extractor = detector("cascade_rcnn_swin_nano_shapes", tmp_path).roi_head.bbox_roi_extractor[0]
    sizes = [[side // stride for side in PADDED] for stride in (4, 8, 16, 32)]
    maps = [torch.randn(1, extractor.out_channels, *size).bfloat16() for size in sizes]
    rois = torch.tensor([[0, 1100.3, 5.1, 1289.7, 39.6], [0, 700.2, 9.4, 730.9, 59.9]])
    want = extractor([x.float() for x in maps], rois)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(extractor(maps, rois).float(), want)


@pytest.mark.parametrize("name", ["dino_swin_nano_shapes", "mask2former_swin_nano_shapes"])
@torch.no_grad()
def test_deformable_attention_reads_at_float32_locations(name, tmp_path, monkeypatch):
    """mmcv casts locations to the values on a GPU, where it has an op."""
    seen, sample_values = [], multi_scale_deform_attn.multi_scale_deformable_attn_pytorch

    def spy(value, shapes, locations, weights):
        seen.extend([value.dtype, locations.dtype])
        return sample_values(value, shapes, locations, weights)

    monkeypatch.setattr(multi_scale_deform_attn, "multi_scale_deformable_attn_pytorch", spy)
    model = detector(name, tmp_path)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.zeros(1, 3, *PADDED), [sample(False)], mode="predict")
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("name", ["cascade_rcnn_swin_nano_shapes", "sparse_rcnn_swin_nano_shapes"])
@torch.no_grad()
def test_an_exported_model_in_half_precision_has_boxes_of_float32(name, tmp_path):
    model = detector(name, tmp_path)
    model.backbone.maps = [x.half() for x in model.backbone.maps]
    fix(model)
    boxes = Detector(model).half()(torch.zeros(1, 3, *PADDED).half())["boxes"]
    far = boxes[boxes > 1024]
    assert (far % 1 != 0).any()  # float16 has whole pixels there


@pytest.mark.parametrize(
    ("name", "rle"), [*((name, False) for name in NUM_RESULTS), ("mask2former_swin_nano_shapes", True)]
)
@torch.no_grad()
def test_queries_give_as_many_results_as_there_are(name, rle, tmp_path):
    def build(cfg):
        cfg.model.test_cfg.update(panoptic_on=False, instance_on=True)
        keys = {"max_per_img", "max_per_image"}
        limits = [node for node in nodes([cfg.model.test_cfg]) if keys & node.keys()]
        for node in limits:
            node.update(dict.fromkeys(keys & node.keys(), 10**4))
        if rle:
            use_rle(cfg.model)
        model = build_model(cfg)
        assert all(set(node.values()) & {10**4} for node in limits)  # the config is as it was
        return model

    model = detector(name, tmp_path, build)
    if "sparse" in name:
        model.rpn_head.init_weights()  # proposals of the whole image, none inverted
    (found,) = model(torch.zeros(1, 3, *PADDED), [sample(True)], mode="predict")
    assert len(found.pred_instances) == NUM_RESULTS[name]


def test_queries_of_an_unknown_head_are_not_changed():
    model = nn.Module()
    model.num_queries, model.bbox_head = 10, nn.Linear(4, 4)
    assert guard_model(model) is model


def test_a_second_call_adds_nothing(tmp_path):
    model = detector("dino_swin_nano_shapes", tmp_path)
    before = [len(module._forward_hooks) for module in model.modules()]
    guard_model(model)
    assert before == [len(module._forward_hooks) for module in model.modules()]
