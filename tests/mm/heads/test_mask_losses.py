"""Losses of EoMT and PMT: without masks in an image or a batch, and in half precision."""

import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from torch import nn

from vitdense.mm.heads.mask_transformer.heads import EoMTHead, PMTHead
from vitdense.mm.heads.mask_transformer.semantic import EoMTSegHead
from vitdense.models.vit.tokens import JointViT, TokenViT

SIZES = {"embed_dims": 16, "depth": 3, "num_heads": 2, "patch_size": 8, "rope": "dinov3", "registers": 2}
SIZES |= {"absolute_position": False}
OPTIONS = {"num_queries": 6, "patch_size": 8, "train_cfg": {"num_points": 64}}
SIZE = 32


class Model(nn.Module):
    def __init__(self, kind="eomt"):
        super().__init__()
        torch.manual_seed(0)
        classes = {"num_things_classes": 3, "num_stuff_classes": 2}
        if kind == "pmt":
            self.backbone = TokenViT(SIZES, out_indices=(0, 2), out_norm="shared", frozen_stages="all")
            self.head = PMTHead([16, 16], 2, num_blocks=2, **classes, **OPTIONS)
        else:
            self.backbone = JointViT(arch=SIZES, num_joint_blocks=2)
            head, classes = (EoMTSegHead, {"num_classes": 5}) if kind == "semantic" else (EoMTHead, classes)
            self.head = head(in_channels=[16], num_blocks=2, **classes, **OPTIONS)

    def forward(self, images, samples):
        options = (None,) if isinstance(samples[0], SegDataSample) else ()
        losses = self.head.loss(self.backbone(images), samples, *options)
        assert len(losses) == 9  # three of each of three predictions
        return sum(losses.values())


def sample(labels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randn(len(labels), SIZE, SIZE, generator=generator) > 0.5
    found = DetDataSample(metainfo={"img_shape": (SIZE, SIZE), "batch_input_shape": (SIZE, SIZE)})
    masks = BitmapMasks(masks.numpy().astype("uint8"), SIZE, SIZE)
    found.gt_instances = InstanceData(labels=torch.tensor(labels, dtype=torch.long), masks=masks)
    seg = torch.full((1, SIZE, SIZE), 255)
    if labels:
        seg[:, : SIZE // 2] = 4
    found.gt_sem_seg = PixelData(sem_seg=seg)
    return found


def semantic_sample(labels):
    seg = torch.full((1, SIZE, SIZE), 255)
    for i, label in enumerate(labels):
        seg[:, :, 4 * i : 4 * i + 4] = label
    return SegDataSample(gt_sem_seg=PixelData(data=seg), metainfo={"img_shape": (SIZE, SIZE)})


@pytest.mark.parametrize("labels", [([0, 2], []), ([], []), ([], [1])])
@pytest.mark.parametrize("kind", ["eomt", "pmt", "semantic"])
def test_images_without_masks(kind, labels):
    model = Model(kind).train()
    make = semantic_sample if kind == "semantic" else sample
    loss = model(torch.randn(2, 3, SIZE, SIZE), [make(one) for one in labels])
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:  # of every process, or DDP waits
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_class_loss_by_hand():
    """Without masks every query is to be no object, in every one of the three predictions."""
    model = Model().train()
    features = model.backbone(torch.randn(1, 3, SIZE, SIZE))
    none = InstanceData(labels=torch.empty(0, dtype=torch.long), masks=torch.empty(0, SIZE, SIZE, dtype=torch.long))
    losses = model.head.loss_by_feat(*model.head(features), [none], [{}])
    scores = model.head(features)[0][0]
    want = 2 * -scores.log_softmax(-1)[..., -1].mean()  # weights of the class cancel
    torch.testing.assert_close(losses["d0.loss_cls"], want)
    assert all(float(x.detach()) == 0 for name, x in losses.items() if "cls" not in name)


@pytest.mark.parametrize("kind", ["eomt", "pmt"])
def test_half_precision(kind):
    """Matching and losses stay in float32, where sums over points fit."""
    model, images = Model(kind).train(), torch.randn(2, 3, SIZE, SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images, [sample([0, 2]), sample([1])])
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
