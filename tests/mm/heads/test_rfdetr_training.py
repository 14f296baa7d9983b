"""RF-DETR's own parts of a training: batches of a drawn size, and the average of the weights."""

import math

import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from torch import nn

from vitdense.mm.config.load import load_config
from vitdense.mm.heads.rfdetr.head import BatchResize

STEP, H, W = 32, 160, 224
BOX = (32.0, 48.0, 128.0, 112.0)  # left, upper, right, lower


def batch():
    image = torch.zeros(2, 3, H, W)
    left, upper, right, lower = map(int, BOX)
    image[:, :, upper:lower, left:right] = 1
    samples = []
    for one in image:
        sample = DetDataSample(metainfo={"img_shape": (150, 200), "batch_input_shape": (H, W), "pad_shape": (H, W)})
        masks = BitmapMasks(one[:1].numpy().astype("uint8"), H, W)
        sample.gt_instances = InstanceData(bboxes=torch.tensor([BOX]), labels=torch.zeros(1), masks=masks)
        samples.append(sample)
    return image, samples


@pytest.mark.parametrize("most", [0, 2, 5])
def test_sizes_of_batches(most):
    """Whole steps; the shorter side, of five steps, is every one within the bounds, but one of two steps at least."""
    resize, sizes = BatchResize(STEP, most), set()
    for seed in range(200):
        torch.manual_seed(seed)
        sizes.add(tuple(resize(*batch())[0].shape[2:]))
    assert all(side % STEP == 0 for size in sizes for side in size)
    assert {h // STEP for h, _ in sizes} == {max(5 + i, 2) for i in range(-most, most + 1)}
    assert all(abs(w / h - W / H) * h <= STEP / 2 or h == 2 * STEP for h, w in sizes)


@pytest.mark.parametrize("seed", range(8))
def test_boxes_and_masks_follow_their_image(seed):
    torch.manual_seed(seed)
    images, samples = BatchResize(STEP)(*batch())
    size = tuple(images.shape[2:])
    assert len(images) == len(samples) == 2
    for image, sample in zip(images, samples):
        assert sample.batch_input_shape == sample.pad_shape == size
        assert sample.img_shape == (round(150 * size[0] / H), round(200 * size[1] / W))
        rows, columns = (image[0] > 0.5).nonzero().T
        drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        drawn = [float(side) for side in drawn]
        assert sample.gt_instances.bboxes[0].tolist() == pytest.approx(drawn, abs=1)
        mask = torch.from_numpy(sample.gt_instances.masks.masks[0])
        assert mask.shape == size
        differ = mask.bool() != (image[0] > 0.5)
        assert differ.sum() <= 2 * sum(size)  # pixels of the rectangle's edge


@pytest.mark.parametrize("name", ["rfdetr_s_coco", "rfdetr_seg_s_coco"])
def test_recipes_resize_only_in_training(name):
    cfg = load_config(name)
    init_default_scope("mmdet")
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    patch, windows = cfg.model.backbone.patch_size, 2
    side = 6 * patch * windows
    sizes = {True: set(), False: set()}
    for training, seen in sizes.items():
        for seed in range(20):
            torch.manual_seed(seed)
            _, (sample, _) = batch()
            sample.gt_instances.masks = sample.gt_instances.masks.resize((side, side))
            data = {"inputs": [torch.zeros(3, side, side, dtype=torch.uint8)], "data_samples": [sample]}
            seen.add(tuple(preprocessor(data, training)["inputs"].shape[2:]))
    assert sizes[False] == {(side, side)}
    assert len(sizes[True]) > 5
    assert all(h == w and h % (patch * windows) == 0 for h, w in sizes[True])


def test_average_of_the_weights():
    """The authors' decay: 0.993 x (1 - exp(-n / 100)) at update n; the first one copies."""
    (hook,) = load_config("rfdetr_s_coco").custom_hooks
    assert hook.pop("type") == "EMAHook"
    init_default_scope("mmdet")
    model = nn.Linear(1, 1, bias=False)
    average = MODELS.build({"type": hook.pop("ema_type"), **hook}, default_args={"model": model})
    values = [(-1.0) ** n * n for n in range(300)]
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update_parameters(model)
    want = values[0]
    for n, value in enumerate(values[1:], 1):
        decay = 0.993 * (1 - math.exp(-(n + 1) / 100))
        want = decay * want + (1 - decay) * value
    assert average.module.weight.item() == pytest.approx(want, rel=1e-4)
