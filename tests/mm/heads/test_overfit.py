"""Nano recipes overfit eight images: their loss falls to a few hundredths, and they find all that they were shown."""

import copy

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import Evaluator
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, init_default_scope

from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.query import drop_weights, image_size

IMAGES, STEPS, WARM_UP = 8, 300, 20
RECIPES = {  # recipe -> share of the first loss that may be left, and the metric
    "atss_swin_nano_shapes": (0.25, "coco/bbox_mAP"),  # the cross-entropy of centerness has a floor: it is no 0 or 1
    "cascade_rcnn_swin_nano_shapes": (0.05, "coco/bbox_mAP"),
    "cascade_swin_nano_shapes": (0.06, "coco/bbox_mAP"),  # masks of 28 x 28
    "dino_swin_nano_shapes": (0.12, "coco/bbox_mAP"),  # each step has new noise to remove
    "sparse_rcnn_swin_nano_shapes": (0.05, "coco/bbox_mAP"),
    "rfdetr_nano_shapes": (0.05, "coco/bbox_mAP"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_overfits_eight_images(name, tmp_path):
    cfg = load_config(name)
    init_default_scope(cfg.default_scope)
    drop_weights(cfg.model)
    cfg.model.backbone.drop_path_rate = 0.0
    size = [min(image_size(cfg))] * 2
    data = cfg.test_dataloader.dataset
    data.update(data_root=f"{tmp_path}/shapes/", draw=dict(num_train=1, num_val=IMAGES + 2, image_size=size))
    torch.manual_seed(0)
    dataset = DATASETS.build(data)
    items = [dataset[i] for i in range(len(dataset)) if i not in (3, 7)]  # these have a crowd, and no object
    model = build_model(cfg)
    model.init_weights()
    optim = build_optim_wrapper(model.train(), cfg.optim_wrapper)
    rates, losses = [group["lr"] for group in optim.optimizer.param_groups], []
    for step in range(STEPS):
        share = min((step + 1) / WARM_UP, 1, 2 * (1 - step / STEPS))
        for group, rate in zip(optim.optimizer.param_groups, rates):
            group["lr"] = share * rate
        batch = model.data_preprocessor(pseudo_collate(copy.deepcopy(items)), True)
        loss, _ = model.parse_losses(model(**batch, mode="loss"))
        optim.update_params(loss)
        losses.append(loss.item())

    most, metric = RECIPES[name]
    evaluator = Evaluator(cfg.test_evaluator)
    evaluator.dataset_meta = dataset.metainfo
    model.eval()
    for item in items:
        item["data_samples"].set_metainfo({"flip": False})
        with torch.no_grad():
            evaluator.process(model.test_step(pseudo_collate([item])), None)
    assert evaluator.evaluate(IMAGES)[metric] >= 0.95
    assert losses[-1] < most * losses[0]
