"""Every head in two processes: with one image without objects, and against one process with the same images."""

import copy
import random

import numpy as np
import pytest
import torch
from conftest import run_ranks

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from vitdense.mm.config.load import build_model, load_config
from vitdense.mm.config.walk import drop_weights

pytestmark = [pytest.mark.long, pytest.mark.commands]
# Their losses draw no random numbers, and divide by the mean over the processes.
EQUAL = ("atss_swin_nano_shapes", "sparse_rcnn_swin_nano_shapes", "upernet_swin_nano_shapes")
# Others draw samples of boxes or points, or noise; RepPoints V2 divides by the positives of a process, as its authors.
OTHERS = ("cascade_swin_nano_shapes", "cascade_rcnn_swin_nano_shapes", "reppoints_v2_swin_nano_shapes")
OTHERS += ("htc_swin_nano_shapes", "mask2former_swin_nano_shapes", "dino_swin_nano_shapes", "eomt_nano_shapes")


def example(name, folder):
    """A model with fixed statistics, and two images."""
    cfg = load_config(name)
    init_default_scope(cfg.default_scope)
    drop_weights(cfg.model)
    cfg.model.backbone.drop_path_rate = 0.0
    cfg.train_dataloader.dataset.update(
        data_root=f"{folder}/shapes/", draw=dict(num_train=4, num_val=1, image_size=(128, 128))
    )
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    items = [dataset[i] for i in range(2)]
    model = build_model(cfg)
    model.init_weights()
    model.train()
    for module in model.modules():
        if isinstance(module, (_BatchNorm, nn.Dropout, nn.Dropout2d)):
            module.eval()
    return model, items


def backward(model, module, items):
    """The loss of a step, after its backward pass."""
    torch.manual_seed(1)
    data = module.data_preprocessor(pseudo_collate(copy.deepcopy(items)), True)
    loss, _ = module.parse_losses(model(**data, mode="loss"))
    loss.backward()
    return loss.detach()


def gradients(module):
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def _step(rank, rendezvous, name, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    model, items = example(name, folder)
    model = DistributedDataParallel(model)
    if name in EQUAL:
        loss = backward(model, model.module, [items[rank]])
        torch.distributed.all_reduce(loss)
        want_loss, want = torch.load(f"{folder}/alone.pt")
        assert abs(loss / 2 - want_loss) < 1e-5 * want_loss
        assert (gradients(model.module) - want).norm() < 2e-5 * want.norm()
    if rank and "gt_instances" in (sample := items[1]["data_samples"]):
        sample.gt_instances = sample.gt_instances[torch.zeros(len(sample.gt_instances), dtype=torch.bool)]
    for _ in range(2):  # DDP raises in the second step if a parameter had no gradient in the first
        assert backward(model, model.module, [items[rank]]).isfinite()
    assert gradients(model.module).isfinite().all()


@pytest.mark.parametrize(
    "name", ["atss_swin_nano_shapes", *(pytest.param(n, marks=pytest.mark.slow) for n in (*EQUAL[1:], *OTHERS))]
)
def test_two_processes(name, tmp_path):
    model, items = example(name, tmp_path)  # draws the images
    loss = backward(model, model, items)
    torch.save((loss, gradients(model)), tmp_path / "alone.pt")
    run_ranks(_step, str(tmp_path / "rendezvous"), name, str(tmp_path))
