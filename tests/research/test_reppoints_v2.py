"""RepPoints V2: against golden tensors of the authors' code, and its details one by one (`test_trap_...`)."""

import copy
import math

import pytest
import torch
from conftest import REPO
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from test_configs import build_on_meta, decays
from torch import nn
from torchvision.ops import DeformConv2d

from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.flops import num_params
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.research.reppoints_v2 import head as reppoints_v2
from vitdense.research.reppoints_v2.head import RepPointsV2Head, semantic_focal_loss
from vitdense.research.reppoints_v2.targets import assign_init, corner_targets, gaussian_radius

TRAIN = {"topk": 9, "gaussian_iou": 0.7}
TEST = {"nms_pre": 1000, "score_thr": 0.05, "nms": {"type": "nms", "iou_threshold": 0.6}, "max_per_img": 100}
CLASSES, WIDTH = 3, 64
NAMES = ("cls", "pts_init", "pts_refine", "hm_score", "hm_offset", "sem")
LOSSES = ("cls", "pts_init", "pts_refine", "heatmap", "offset", "sem")


def make_head(**options):
    sizes = {"feat_channels": WIDTH, "point_feat_channels": 32, "corner_dim": 32, "stacked_convs": 1}
    head = RepPointsV2Head(CLASSES, 16, **sizes | options, train_cfg=TRAIN, test_cfg=TEST)
    head.init_weights()
    return head


def maps(height=96, width=128, batch=2):
    return [torch.randn(batch, 16, -(-height // s), -(-width // s)) for s in (8, 16, 32, 64, 128)]


def meta(height=96, width=128, **changes):
    sizes = {"img_shape": (height, width), "pad_shape": (height, width), "ori_shape": (height, width)}
    return {**sizes, "scale_factor": (1.0, 1.0), **changes}


def truth(*boxes):
    boxes = torch.tensor(boxes).view(-1, 4)
    return InstanceData(bboxes=boxes, labels=torch.arange(len(boxes)) % CLASSES)


def some_truth():
    return [truth([10.0, 12.0, 60.0, 70.0], [70.5, 8.3, 120.2, 60.1]), truth([5.0, 30.0, 100.0, 90.0])]


@pytest.fixture(scope="module")
def golden(golden_file):
    config, tensors = golden_file("reppoints_v2_head")
    made = config["constructor"]
    given = ("num_classes", "in_channels", "feat_channels", "point_feat_channels", "corner_dim", "stacked_convs")
    options = {key: made[key] for key in given}
    test_cfg = {key: made["test_cfg"][key] for key in TEST}
    head = RepPointsV2Head(**options, strides=made["point_strides"], train_cfg=TRAIN, test_cfg=test_cfg)
    head.load_state_dict({key[3:]: value for key, value in tensors.items() if key.startswith("sd.")}, strict=True)
    inputs = [tensors[f"in.{level}"].requires_grad_() for level in range(5)]
    shapes = {key: tensors[key].tolist() for key in ("img_shape", "pad_shape")}
    metas = [
        {"img_shape": img, "pad_shape": pad, "scale_factor": factor[:2]}
        for img, pad, factor in zip(shapes["img_shape"], shapes["pad_shape"], tensors["scale_factor"].tolist())
    ]
    return tensors, head, inputs, head(inputs), metas


def golden_truth(tensors, case=""):
    return [
        InstanceData(bboxes=tensors[f"{case}gt_bboxes.{i}"], labels=tensors[f"{case}gt_labels.{i}"]) for i in range(2)
    ]


def golden_targets(golden, case=""):
    tensors, head, _, outs, metas = golden
    sizes, points, counts = head._points(outs[0])
    init = reppoints_v2._boxes(outs[1], points).detach()
    images = zip(init, golden_truth(tensors, case), metas)
    found = [head._targets(points, counts, sizes, *image) for image in images]
    return {key: torch.stack([image[key] for image in found]) for key in found[0]}


def test_golden_outputs(golden):
    tensors, _, _, outs, _ = golden
    assert [len(out) for out in outs] == [5] * 6
    for name, out in zip(NAMES, outs, strict=True):
        for level, x in enumerate(out):
            want = tensors[f"out.{name}.{level}"]
            # Rounding is relative, and sums run in another order on other CPUs.
            torch.testing.assert_close(x.detach(), want, rtol=0, atol=1e-5 * max(1, want.abs().max().item()))


@pytest.mark.parametrize("case", ["", "case_b.", "case_empty."])
def test_trap_02_golden_losses(golden, case):
    """Quality focal loss takes logits; Gaussian focal loss probabilities, and its third argument is not the weight."""
    tensors, head, _, outs, metas = golden
    boxes = [truth(), truth()] if case == "case_empty." else golden_truth(tensors, case)
    losses = head.loss_by_feat(*outs, boxes, metas)
    assert list(losses) == [f"loss_{name}" for name in ("pts_init", "pts_refine", "cls", "heatmap", "offset", "sem")]
    for name in LOSSES:
        want = tensors[f"{case}loss.{name}"].sum()  # over levels
        if want.isinf():
            assert (case, name) == ("case_empty.", "sem")
            assert losses["loss_sem"].isfinite()
        else:
            assert losses[f"loss_{name}"].item() == pytest.approx(want.item(), rel=1e-4, abs=1e-9), name
    if case == "case_b.":
        target = golden_targets(golden, case)
        positives = target["init"] > 0, target["refine"] > 0, *(target["heatmap"] == 1).unbind(-1)
        assert [x.sum(1).clamp(min=1).sum().item() for x in positives] == tensors["case_b.num_pos"].tolist()


def test_golden_gradients(golden):
    tensors, head, inputs, outs, metas = golden
    losses = head.loss_by_feat(*outs, golden_truth(tensors), metas)
    names, parameters = zip(*head.named_parameters())
    grads = torch.autograd.grad(sum(losses.values()), [*parameters, *inputs], retain_graph=True)
    norms = torch.stack([grad.norm() for grad in grads])
    want = torch.stack([tensors[f"gradnorm.{name}"] for name in names])
    torch.testing.assert_close(norms, torch.cat([want, tensors["gradnorm_in"]]), rtol=1e-4, atol=1e-7)
    biases = {key[5:]: value for key, value in tensors.items() if key.startswith("grad.")}
    assert len(biases) == 8
    for name, want in biases.items():
        torch.testing.assert_close(grads[names.index(name)], want, rtol=1e-4, atol=1e-6)


def test_golden_conflicts(golden):
    """Boxes that share nearest points."""
    tensors, head, *_ = golden
    boxes = tensors["conflict.gt_bboxes"]
    _, points, counts = head._points(golden[3][0])
    inside = torch.ones(len(points), dtype=torch.bool)
    assigned = assign_init(points, inside, boxes)
    assert assigned.nonzero().flatten().tolist() == tensors["conflict.init_point_index"].tolist()
    assert (assigned[assigned > 0] - 1).tolist() == tensors["conflict.init_gt_index"].tolist()
    radii = gaussian_radius(boxes[:, 2:] - boxes[:, :2], 0.7)
    for i, corner in enumerate(("tl", "br")):
        heatmap, offset = corner_targets(points, counts, inside, boxes.view(-1, 2, 2)[:, i], radii)
        torch.testing.assert_close(heatmap, tensors[f"conflict.heatmap_{corner}"], rtol=1e-5, atol=1e-6)
        index = (heatmap == 1).nonzero().flatten()
        assert index.tolist() == tensors[f"conflict.pos_index_{corner}"].tolist()
        torch.testing.assert_close(offset[index], tensors[f"conflict.offset_{corner}"], rtol=1e-4, atol=1e-4)


def test_golden_boxes_before_nms(golden, monkeypatch):
    """Matched by the index of the point, for the order of nearly equal scores may differ."""
    tensors, head, _, outs, metas = golden
    seen = []
    nms = reppoints_v2.multiclass_nms
    monkeypatch.setattr(reppoints_v2, "multiclass_nms", lambda *args: seen.append(args) or nms(*args))
    with torch.no_grad():
        head.predict_by_feat(*outs, batch_img_metas=metas)
    counts = [x.shape[2:].numel() for x in outs[0]]
    best = reppoints_v2._flat(outs[0]).amax(2)  # [B, N]
    for i, (boxes, scores, *_) in enumerate(seen):
        starts = [sum(counts[:level]) for level in range(5)]
        index = [part.topk(min(1000, len(part))).indices + start for part, start in zip(best[i].split(counts), starts)]
        index, order = torch.cat(index).sort()
        want_index, want_order = tensors[f"det_pre.{i}.point_index"].long().sort()
        assert torch.equal(index, want_index)
        torch.testing.assert_close(boxes[order], tensors[f"det_pre.{i}.boxes"][want_order], rtol=0, atol=1e-3)
        torch.testing.assert_close(scores[order, :-1], tensors[f"det_pre.{i}.scores"][want_order], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "changes", "rescale"),
    [
        ("det", {}, False),
        ("det_all", {"max_per_img": -1}, False),
        ("det_rescaled", {}, True),
        ("det_norefine", {}, False),
    ],
)
def test_golden_detections(golden, monkeypatch, case, changes, rescale):
    tensors, head, _, outs, metas = golden
    if case == "det_norefine":
        monkeypatch.setattr(reppoints_v2, "refine_corners", lambda boxes, *maps: boxes)
    with torch.no_grad():
        results = head.predict_by_feat(*outs, batch_img_metas=metas, cfg=TEST | changes, rescale=rescale)
    for i, found in enumerate(results):
        want = {key: tensors[f"{case}.{i}.{key}"] for key in ("boxes", "scores", "labels")}
        assert len(found) == len(want["boxes"]) >= 100
        distance = (found.bboxes[:, None] - want["boxes"]).abs().amax(-1)  # [n, n]
        distance += 1e3 * (found.labels[:, None] != want["labels"])
        nearest, match = distance.min(1)  # neighbours in score may change places
        assert nearest.max() <= 1e-3
        assert match.unique().numel() == len(match)
        torch.testing.assert_close(found.scores, want["scores"][match], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "stride"),
    [((4, 4), 8), ((31, 31), 8), ((32, 32), 8), ((63, 63), 8), ((64, 64), 16), ((16, 257), 16), ((2000, 1900), 128)],
)
def test_level_of_a_box_follows_its_size(size, stride):
    _, points, _ = make_head()._points(maps(2048, 2048, batch=1))
    box = torch.tensor([[10.0, 20.0, 10.0 + size[0], 20.0 + size[1]]])
    assigned = assign_init(points, torch.ones(len(points), dtype=torch.bool), box)
    assert points[assigned == 1, 2].tolist() == [stride]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_trap_03_losses_without_boxes_and_of_saturated_logits_are_finite(scale):
    head = make_head().train()
    outs = [[x * scale for x in out] if name in ("cls", "sem") else out for name, out in zip(NAMES, head(maps()))]
    for boxes in ([truth(), truth()], some_truth(), [truth(), some_truth()[1]]):
        head.zero_grad()
        losses = head.loss_by_feat(*outs, boxes, [meta(), meta()])
        assert all(loss.isfinite() for loss in losses.values())
        sum(losses.values()).backward(retain_graph=True)
        assert all(p.grad.isfinite().all() for p in head.parameters())
    for x in (-200.0, 200.0):
        loss = semantic_focal_loss(torch.full((4,), x), torch.tensor([0.0, 0.0, 0.5, 0.0]))
        assert loss.isfinite()


@pytest.mark.skipif(int(torch.__version__.split(".")[1]) < 10, reason="torch before 2.10 asks for a driver")
def test_trap_08_targets_stay_on_the_device():
    """Without values, on a GPU that need not exist: nothing of the CPU takes part, and no value is read."""
    from torch._subclasses import FakeTensorMode

    head, sizes = make_head(), [x.shape[2:] for x in maps()]
    with FakeTensorMode():
        sizes, points, counts = head._points([torch.empty(1, 1, *size, device="cuda") for size in sizes])
        boxes, labels = torch.empty(3, 4, device="cuda"), torch.zeros(3, dtype=torch.long, device="cuda")
        gt = InstanceData(bboxes=boxes, labels=labels)
        target = head._targets(points, counts, sizes, torch.empty(len(points), 4, device="cuda"), gt, meta())
    assert {value.device.type for value in target.values()} == {"cuda"}


def test_trap_10_points_and_their_offsets_are_float32_in_half_precision():
    head = make_head()
    seen = []
    for conv in (head.reppoints_cls_conv, head.reppoints_pts_refine_conv):
        conv.register_forward_pre_hook(lambda module, args: seen.append(args[1].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        outs = head(maps())
        losses = head.loss_by_feat(*outs, some_truth(), [meta(), meta()])
    dtypes = {name: {x.dtype for x in out} for name, out in zip(NAMES, outs)}
    assert dtypes["pts_init"] == dtypes["pts_refine"] == set(seen) == {torch.float32}
    assert dtypes["cls"] == dtypes["hm_score"] == {torch.bfloat16}
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    with torch.no_grad():
        (found, _) = head.predict_by_feat(*outs, batch_img_metas=[meta(), meta()])
    assert found.bboxes.dtype == torch.float32


def outputs_with(points, logits):
    """Outputs of one image that are 0, with class logits of -9, but for one cell of stride 8 (row 3, column 4)."""
    found = []
    for name, channels in zip(NAMES, (CLASSES, 18, 18, 2, 4, CLASSES)):
        found.append([torch.full((1, channels, *x.shape[2:]), -9.0 if name == "cls" else 0.0) for x in maps()])
    found[0][0][0, :, 3, 4] = torch.tensor(logits)
    found[2][0][0, :4, 3, 4] = torch.tensor(points)
    return found


def test_trap_11_best_points_keep_all_their_classes():
    """Points of a level are limited, not pairs of a point and a class."""
    outs = outputs_with([-1.0, -1.0, 1.0, 1.0], [3.0, 2.0, -9.0])
    (found,) = make_head().predict_by_feat(*outs, batch_img_metas=[meta()], cfg={**TEST, "nms_pre": 1})
    assert found.labels.tolist() == [0, 1]
    assert found.scores.tolist() == pytest.approx([1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-2))])
    assert found.bboxes.tolist() == [[24.0, 16.0, 40.0, 32.0]] * 2


@pytest.mark.parametrize("points", [[1.0, 1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0]])
def test_trap_12_boxes_without_an_area_are_dropped(points):
    (found,) = make_head().predict_by_feat(*outputs_with(points, [3.0, -9.0, -9.0]), batch_img_metas=[meta()])
    assert len(found) == 0


def test_trap_14_initialisation_reaches_deformable_convolutions_and_four_priors():
    head = make_head(feat_channels=128, point_feat_channels=128)
    deformable = [m for m in head.modules() if isinstance(m, DeformConv2d)]
    assert len(deformable) == 2
    assert [m.weight.std().item() for m in deformable] == pytest.approx([0.01] * 2, rel=0.02)
    priors = {name for name, p in head.named_parameters() if name.endswith(".bias") and (p == -math.log(99)).all()}
    names = ("cls_out", "sem_out", "hem_tl_score_out", "hem_br_score_out")
    assert priors == {f"reppoints_{name}.bias" for name in names}
    for name, module in head.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        keeps_default = name.startswith(("hem_", "reppoints_sem_embedding"))
        assert (module.weight.std() > 0.012) == keeps_default, name
        if module.bias is not None and f"{name}.bias" not in priors:
            assert not module.bias.any()


def test_parameters_of_the_published_head():
    with torch.device("meta"):
        head = RepPointsV2Head(80, 256)
    assert num_params(head) == 7_210_442
    assert len(head.state_dict()) == 74


def test_other_names_of_losses_are_an_error():
    with pytest.raises(ValueError, match="loss_weights"):
        make_head(loss_weights={"cls": 1.0, "bbox": 2.0})
    weights = dict.fromkeys(LOSSES, 0.0) | {"sem": 1.0}
    losses = make_head(loss_weights=weights).loss(maps(), samples(some_truth()))
    assert {name for name, loss in losses.items() if loss > 0} == {"loss_sem"}


def samples(truths):
    found = [DetDataSample(metainfo=meta()) for _ in truths]
    for sample, gt in zip(found, truths):
        sample.gt_instances = gt
    return found


@pytest.fixture(scope="module")
def detector():
    cfg = load_config(REPO / "configs/research/reppoints_v2_swin_t_coco.py")
    cfg.model.backbone.init_cfg = None
    cfg.model.backbone.arch = {"embed_dims": 16, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
    cfg.model.neck.update(in_channels=[32, 64, 128], out_channels=64)
    cfg.model.bbox_head.update(in_channels=64, feat_channels=64, point_feat_channels=32, stacked_convs=1)
    return build_model(cfg)


def test_checkpoint_under_the_authors_names_loads_exactly(detector):
    """The names of the released file: the official ones of Swin, and ours elsewhere."""
    own = {key: torch.randn_like(value) for key, value in detector.state_dict().items()}
    backbone = {key.removeprefix("backbone."): own.pop(key) for key in list(own) if key.startswith("backbone.")}
    official = convert(backbone, "official", windows=[7]).backbone
    state = {**{f"backbone.{key}": value for key, value in official.items()}, **own}
    names = ("backbone.layers.2.blocks.1.attn.qkv.weight", "backbone.norm3.bias", "neck.bi_fpn.1.out_combine.2.weights",
             "bbox_head.hem_tl.p_gn1.weight", "bbox_head.reppoints_cls_conv.weight")  # fmt: skip
    assert all(name in state for name in names)
    assert "backbone.norm0.weight" not in state
    found, report = fit_whole(detector, {"meta": {}, "state_dict": state})
    assert (report.scheme, report.share, report.kept_at_init) == ("official", 1, [])
    detector.load_state_dict(found, strict=True)
    assert torch.equal(detector.neck.bi_fpn[1].out_combine[2].weights, own["neck.bi_fpn.1.out_combine.2.weights"])
    with pytest.raises(ValueError, match=r"reppoints_sem_out\.bias"):
        fit_whole(detector, {key: value for key, value in state.items() if key != "bbox_head.reppoints_sem_out.bias"})


@pytest.mark.parametrize("name", ["swin_t", "r50"])
def test_recipe_of_reppoints_v2(name):
    cfg = load_config(f"reppoints_v2_{name}_coco")
    assert cfg.model.backbone.out_indices == (1, 2, 3)
    weights = {"cls": 1.0, "pts_init": 1.0, "pts_refine": 2.0, "heatmap": 0.25, "offset": 1.0, "sem": 0.1}
    model = build_on_meta(copy.deepcopy(cfg))
    assert model.bbox_head.loss_weights == weights
    nms = {"type": "nms", "iou_threshold": 0.6}
    assert cfg.model.test_cfg == {"nms_pre": 1000, "score_thr": 0.05, "nms": nms, "max_per_img": 100}
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    assert "RandomChoice" not in steps  # no crops
    assert not steps["LoadAnnotations"].with_mask
    assert steps["RandomChoiceResize"].scales == [(short, 1333) for short in range(480, 961, 32)]
    assert cfg.val_evaluator.metric == "bbox"
    assert cfg.param_scheduler[1].milestones == [27, 33]
    for key, decay in decays(model, cfg).items():
        exempt = name == "swin_t" and ("norm" in key or "relative_position_bias_table" in key)
        assert decay == (0 if exempt else 0.05), key  # GroupNorms and weights of fusions decay
