"""RF-DETR against golden outputs of its authors' wheel and of transformers, on weights drawn by their names."""

import pytest
import torch
from conftest import relative_error
from mmdet.models.detectors import SingleStageDetector
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from rfdetr_drawn import GOLDEN, assert_same_losses, normal, same_points, shapes_of, targets, weights
from safetensors.torch import load_file

from vitdense.checkpoint.detect import detect
from vitdense.checkpoint.whole_models import fit_whole, split_parts

pytestmark = pytest.mark.long

SIZES = {  # image, decoder layers, windows, patch, queries, masks
    "Nano": (384, 2, 2, 16, 300, False),
    "Small": (512, 3, 2, 16, 300, False),
    "Medium": (576, 4, 2, 16, 300, False),
    "Large": (704, 4, 2, 16, 300, False),
    "SegNano": (312, 4, 1, 12, 100, True),
    "SegSmall": (384, 4, 2, 12, 100, True),
    "SegMedium": (432, 5, 2, 12, 200, True),
    "SegLarge": (504, 5, 2, 12, 200, True),
    "SegXLarge": (624, 6, 2, 12, 300, True),
    "Seg2XLarge": (768, 6, 2, 12, 300, True),
}
CLASSES, QUERIES, PIXELS = slice(None, None, 7), slice(None, None, 10), slice(None, None, 3)  # that are kept


def make(size, num_classes=91, **options):
    image, layers, windows, patch, queries, masks = SIZES[size]
    init_default_scope("mmdet")
    sizes = {"image": image, "num_queries": queries, **options}
    trunk = {"num_windows": windows, "patch_size": patch, "pretrain_img_size": sizes.pop("image")}
    sizes |= {"num_classes": num_classes, "stride": patch, "num_layers": layers, "with_masks": masks}
    return SingleStageDetector(
        backbone=dict(type="vitdense.WindowedViT", arch="rfdetr_small", **trunk),
        neck=dict(type="vitdense.C2fProjector", in_channels=[384] * 4),
        bbox_head=dict(type="vitdense.RFDETRHead", **sizes),
    ).eval()


def load(model, name, **shapes):
    wanted = {key: shapes.get(key.replace(".", "_"), shape) for key, shape in shapes_of(name).items()}
    state, report = fit_whole(model, weights(wanted))
    model.load_state_dict(state, strict=True)
    assert not report.kept_at_init
    return model


GOLDENS = {"rfdetr_n": "Nano", "rfdetr_seg_n": "SegNano"}
LARGE = {"rfdetr_seg_xl": "SegXLarge", "rfdetr_seg_2xl": "Seg2XLarge"}
OTHERS = {"rfdetr_transformers_n": "Nano", "rfdetr_transformers_seg_n": "SegNano"}


@pytest.mark.parametrize("name", [*GOLDENS, *LARGE, *OTHERS])
@torch.no_grad()
def test_outputs(name):
    of_authors = GOLDENS | LARGE
    model = load(make((of_authors | OTHERS)[name]), of_authors.get(name, name))
    golden = load_file(GOLDEN / f"{name}.safetensors")
    for at in {key.partition("/")[0] for key in golden}:
        maps = model.extract_feat(normal("image", 1, 3, *map(int, at.split("x"))))
        (found,) = model.bbox_head(maps)
        assert relative_error(found.logits[..., CLASSES], golden[f"{at}/logits"]) < 1e-5
        assert relative_error(found.boxes, golden[f"{at}/boxes"]) < 1e-5
        if found.masks is not None:
            masks = found.masks.logits()[:, QUERIES, PIXELS, PIXELS]
            assert relative_error(masks, golden[f"{at}/masks"]) < 1e-5


@pytest.mark.parametrize("name", GOLDENS)
@torch.no_grad()
def test_one_group_predicts_as_among_thirteen_and_selects_as_the_authors(name):
    size = GOLDENS[name]
    model, golden = load(make(size), size), load_file(GOLDEN / f"{name}.safetensors")
    side, number = SIZES[size][0], SIZES[size][4]
    maps = model.extract_feat(normal("image", 1, 3, side, side))
    (alone,) = model.bbox_head(maps)
    *_, last, first = model.bbox_head.train()(maps)
    assert last.logits.shape[1] == 13 * number
    assert relative_error(first.boxes[:, :number], golden[f"{side}x{side}/selected"]) < 1e-5
    for one, among in ((alone.logits, last.logits), (alone.boxes, last.boxes)):
        assert relative_error(among[:, :number], one) < 1e-5
    if alone.masks is not None:
        assert relative_error(last.masks.queries[:, :number], alone.masks.queries) < 1e-5
        assert relative_error(last.masks.pixels, alone.masks.pixels) < 1e-5


def samples(side, truths, width=None):
    found, size = [], (side, width or side)
    for truth in truths:
        cx, cy, w, h = (truth["boxes"] * torch.tensor([*size[::-1]] * 2)).unbind(1)
        boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], 1)
        masks = BitmapMasks(truth["masks"].numpy().astype("uint8"), *size)
        sample = DetDataSample(metainfo={"img_shape": size, "ori_shape": size, "scale_factor": (1, 1)})
        sample.gt_instances = InstanceData(bboxes=boxes, labels=truth["labels"], masks=masks)
        found.append(sample)
    return found


def for_training(size, patch):
    shapes = {"backbone_0_encoder_encoder_embeddings_position_embeddings": (1, (128 // patch) ** 2 + 1, 384)}
    shapes |= {"refpoint_embed_weight": (13 * 20, 4), "query_feat_weight": (13 * 20, 256)}
    return load(make(size, image=128, num_queries=20), size, **shapes).train()


RENAMED = {"cls": "ce", "mask": "mask_ce", "dice": "mask_dice"}


@pytest.mark.parametrize("size", ["Nano", "SegNano"])
def test_rectangles(size):
    """A model for squares sees rectangles as the authors' does, without another table of positions."""
    model, golden = load(make(size), size), load_file(GOLDEN / "rfdetr_rectangles.safetensors")
    golden = {key.removeprefix(f"{size}/"): x for key, x in golden.items() if key.startswith(f"{size}/")}
    for at in {key.partition("/")[0] for key in golden if "loss" not in key}:
        with torch.no_grad():
            (found,) = model.bbox_head(model.extract_feat(normal("image", 1, 3, *map(int, at.split("x")))))
        assert relative_error(found.logits[:, QUERIES, CLASSES], golden[f"{at}/logits"]) < 3e-6
        assert relative_error(found.boxes[:, QUERIES], golden[f"{at}/boxes"]) < 3e-6
        if found.masks is not None:
            assert relative_error(found.masks.logits()[:, QUERIES, PIXELS, PIXELS], golden[f"{at}/masks"]) < 3e-6
    h, w = (96, 160) if size == "Nano" else (96, 168)
    model = for_training(size, SIZES[size][3])
    with same_points():
        losses = model.loss(normal("images", 3, 3, h, w), samples(h, targets(h, (4, 0, 2), w), w))
    assert_same_losses(losses, {key: x for key, x in golden.items() if "loss" in key}, RENAMED)


@pytest.mark.parametrize("name", GOLDENS)
def test_losses_and_gradients_with_an_image_without_objects(name):
    size = GOLDENS[name]
    side, patch = (128, 16) if size == "Nano" else (120, 12)
    model = for_training(size, patch)
    golden = load_file(GOLDEN / f"{name}_train.safetensors")
    with same_points():
        losses = model.loss(normal("images", 3, 3, side, side), samples(side, targets(side, (4, 0, 2))))
    assert_same_losses(losses, golden, RENAMED)
    sum(losses.values()).backward()
    head, trunk = model.bbox_head, model.backbone
    layer = head.decoder.layers[0]
    rows = {
        "class_embed.bias": head.classes.bias,
        "transformer.enc_out_class_embed.12.bias": head.selections[12].classes.bias,
        "transformer.enc_output.3.bias": head.selections[3].proj.bias,
        "transformer.decoder.layers.0.cross_attn.sampling_offsets.bias": layer.cross.sampling_offsets.bias,
        "transformer.decoder.layers.0.norm1.weight": layer.norm1.weight,
        "backbone.0.encoder.encoder.layernorm.weight": trunk.norm.weight,
        "backbone.0.projector.stages.0.1.bias": model.neck.norm.bias,
    }
    if head.masks is not None:
        rows["segmentation_head.blocks.1.dwconv.bias"] = head.masks.blocks[1].conv.bias
        rows["segmentation_head.bias"] = head.masks.bias
    for key, parameter in rows.items():
        # Where a point crosses from one pixel to the next, its gradient jumps: noise of 1e-7 in the image is 1e-3 here.
        bound = 2e-3 if "sampling_offsets" in key else 1e-4
        assert relative_error(parameter.grad, golden[f"grad/{key}"]) < bound, key
    assert not [key for key, p in model.named_parameters() if p.grad is None]


TOTALS = {"Nano": 30.47, "Small": 32.11, "Medium": 33.69, "Large": 33.93, "SegNano": 33.58, "SegMedium": 35.69}
TOTALS |= {"SegXLarge": 38.11, "Seg2XLarge": 38.65}


@pytest.mark.parametrize("size", SIZES)
def test_keys_and_parameters(size):
    with torch.device("meta"):
        model = make(size)
        wanted = {key: torch.empty(shape) for key, shape in shapes_of(size).items() if 0 not in shape}
    if size in TOTALS:
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(TOTALS[size], abs=0.006)
    state, found, ours = split_parts(wanted, ""), {}, {}
    for name in ("backbone", "neck", "bbox_head"):
        part = model.get_submodule(name)
        found |= {f"{name}.{key}": x for key, x in part.state_dict().items()}
        match = detect(state, (part.family,), prefix=f"{name}.")
        ours |= {f"{name}.{key}": x for key, x in match.ours.items()}
    assert {key: x.shape for key, x in ours.items()} == {key: x.shape for key, x in found.items()}
