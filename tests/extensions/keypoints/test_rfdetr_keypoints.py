"""RF-DETR with keypoints against golden outputs of its authors' wheel, on weights drawn by their names."""

import pytest
import torch
from conftest import relative_error
from mmdet.models.detectors import SingleStageDetector
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from rfdetr_drawn import GOLDEN, assert_same_losses, normal, shapes_of, targets, weights, with_keypoints
from safetensors.torch import load_file

from vitdense.checkpoint.whole_models import fit_whole
from vitdense.errors import OptionError
from vitdense.extensions.keypoints.head import RFDETRKeypointHead
from vitdense.extensions.keypoints.steps import Keypoints

pytestmark = pytest.mark.long


def make(image=576, queries=100):
    init_default_scope("mmdet")
    return SingleStageDetector(
        backbone=dict(type="vitdense.WindowedViT", arch="rfdetr_small", patch_size=12, pretrain_img_size=image),
        neck=dict(type="vitdense.KeypointProjector", in_channels=[384] * 4),
        bbox_head=dict(type="vitdense.RFDETRKeypointHead", stride=12, num_layers=4, num_queries=queries),
    ).eval()


def drawn(rows=1, **shapes):
    wanted = {}
    for key, shape in shapes_of("KeypointPreview").items():
        wanted[key] = (rows, *shape[1:]) if "class_embed" in key else shapes.get(key.replace(".", "_"), shape)
    mask = torch.zeros(rows, 17, dtype=torch.bool)
    mask[-1] = True
    total = {"transformer.decoder.keypoint_class_mask": torch.zeros(18, 18, dtype=torch.bool), "_kp_active_mask": mask}
    return weights({key: shape for key, shape in wanted.items() if key not in total}) | total


def load(model, state):
    found, report = fit_whole(model, state)
    model.load_state_dict(found, strict=True)
    assert not report.kept_at_init
    return model


def sample(side, truth=None):
    one = DetDataSample(metainfo={"img_shape": (side, side), "ori_shape": (side, side), "scale_factor": (1.0, 1.0)})
    if truth is not None:
        cx, cy, w, h = (truth["boxes"] * side).unbind(1)
        boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 1)
        points = (truth["keypoints"] * torch.tensor([side, side, 1.0])).numpy()
        keypoints = Keypoints(points, side, side, range(17))
        one.gt_instances = InstanceData(bboxes=boxes, labels=truth["labels"], masks=keypoints)
    return one


@torch.no_grad()
def test_outputs_and_results():
    side, golden = 288, load_file(GOLDEN / "rfdetr_keypoints.safetensors")
    model = load(make(), drawn())
    maps = model.extract_feat(normal("image", 1, 3, side, side))
    (found,) = model.bbox_head(maps)
    for name, field in (("logits", "logits"), ("boxes", "boxes"), ("keypoints", "more")):
        assert relative_error(getattr(found, field), golden[f"{side}x{side}/{name}"]) < 1e-5, name
    (results,) = model.bbox_head.predict(maps, [sample(side)])
    order = golden["scores"].argsort(descending=True)
    assert relative_error(results.scores, golden["scores"][order]) < 1e-5
    assert relative_error(results.keypoints, golden["keypoints"][order]) < 1e-5


@torch.no_grad()
def test_keypoints_are_in_pixels_of_the_original_image():
    model = load(make(), drawn())
    maps = model.extract_feat(normal("image", 1, 3, 120, 120))
    one = sample(120)
    one.set_metainfo({"scale_factor": (0.5, 2.0), "ori_shape": (60, 240)})
    (small,), (whole,) = (model.bbox_head.predict(maps, [one], rescale=rescale) for rescale in (False, True))
    assert torch.allclose(whole.keypoints * torch.tensor([0.5, 2.0, 1.0]), small.keypoints, rtol=1e-5)
    assert torch.allclose(whole.bboxes * torch.tensor([0.5, 2.0]).repeat(2), small.bboxes, rtol=1e-5)


@torch.no_grad()
def test_one_group_predicts_the_same_as_among_thirteen():
    model = load(make(), drawn())
    maps = model.extract_feat(normal("image", 1, 3, 288, 288))
    (alone,) = model.bbox_head(maps)
    *_, last, _ = model.bbox_head.train()(maps)
    for name in ("logits", "boxes", "more"):
        assert relative_error(getattr(last, name)[:, :100], getattr(alone, name)) < 1e-5, name


def test_losses_and_gradients_with_an_image_without_objects():
    side, rows = 120, 13 * 20
    shapes = {"backbone_0_encoder_encoder_embeddings_position_embeddings": (1, 101, 384)}
    shapes |= {"refpoint_embed_weight": (rows, 4), "query_feat_weight": (rows, 256)}
    model = load(make(120, 20), drawn(**shapes))
    golden = load_file(GOLDEN / "rfdetr_keypoints_train.safetensors")
    truths = with_keypoints(targets(side, (4, 0, 2)))
    losses = model.train().loss(normal("images", 3, 3, side, side), [sample(side, one) for one in truths])
    names = {"cls": "ce", "point": "keypoints_l1", **{x: f"keypoints_{x}" for x in ("findable", "visible", "nll")}}
    assert_same_losses(losses, golden, names)
    sum(losses.values()).backward()
    head, layer = model.bbox_head, model.bbox_head.decoder.layers[2]
    rows = {
        "class_embed.bias": head.classes.bias,
        "keypoint_embed.layers.2.bias": head.keypoints.layers[2].bias,
        "transformer.enc_out_keypoint_embed.12.layers.0.bias": head.first_keypoints[12].layers[0].bias,
        "transformer.keypoint_query_initializer.adaLN_modulation.0.bias": head.points.fc1.bias,
        "transformer.keypoint_query_initializer_enc.out_proj.bias": head.first_points.proj.bias,
        "transformer.decoder.layers.2.kp_inst_self_attn.out_proj.bias": layer.joint.proj.bias,
        "transformer.decoder.layers.2.instance_kp_layer_scale": layer.joint_scale,
        "transformer.decoder.layers.2.kp_cross_attn.value_proj.bias": layer.point_cross.value_proj.bias,
        "backbone.0.cross_attn_projector.stages.0.1.bias": model.neck.keypoints.norm.bias,
        "backbone.0.encoder.encoder.layernorm.weight": model.backbone.norm.weight,
    }
    for key, parameter in rows.items():
        assert relative_error(parameter.grad, golden[f"grad/{key}"]) < 1e-4, key
    assert not [key for key, p in model.named_parameters() if p.grad is None]


def test_keys_and_parameters():
    """The authors' published totals, with the 91 outputs of their default."""
    with torch.device("meta"):
        model = make()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(40.72, abs=0.006)
    state, report = fit_whole(model, drawn(91))
    assert state.keys() == model.state_dict().keys()
    assert not report.kept_at_init


@pytest.mark.parametrize("rows", [1, 2, 91])
def test_of_several_outputs_the_one_with_keypoints_is_taken(rows):
    with torch.device("meta"):
        model = make()
    given = drawn(rows)
    state, _ = fit_whole(model, given)
    assert state["bbox_head.classes.weight"].equal(given["class_embed.weight"][-1:])
    assert state["bbox_head.selections.3.classes.bias"].equal(given["transformer.enc_out_class_embed.3.bias"][-1:])


@pytest.mark.parametrize("options", [{"num_classes": 2}, {"with_masks": True}, {"num_keypoints": 0}])
def test_what_is_refused(options):
    with pytest.raises(OptionError, match="num_classes"):
        RFDETRKeypointHead(**options)
