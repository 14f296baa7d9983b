"""Trunks of timm in configs of mmdet and mmseg: swapped in, checked, with layer-wise decay."""

import pytest
import torch
from mmengine.config import Config

from vitdense.mm.checks.model import normalisation
from vitdense.mm.config.base import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.query import drop_weights
from vitdense.mm.train.optim import layer_factors


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "name", "neck"),
    [
        ("mmdet::retinanet/retinanet_r18_fpn_1x_coco.py", "timm://pvt_v2_b0.in1k", {"in_channels": [32, 64, 160, 256]}),
        (
            "mmseg::upernet/upernet_r18_4xb2-40k_cityscapes-512x1024.py",
            "timm://vit_small_patch14_reg4_dinov2.lvd142m",
            {"type": "vitdense.DeconvPyramid", "in_channels": [384] * 4, "design": "light"},
        ),
    ],
)
def test_a_trunk_of_timm_is_swapped_in_checked_and_decays(config, name, neck):
    cfg = Config.fromfile(find_config(config))
    new = pytest.importorskip("vitdense.extensions.swap.changes").model_changes(cfg, name)
    assert new["neck"] == neck
    assert new["backbone"]["init_cfg"]["checkpoint"] == name
    if "type" in neck:
        assert new["data_preprocessor"]["test_cfg"] == {"size_divisor": 28}
    cfg.merge_from_dict({"model": new})
    assert list(cfg.model.data_preprocessor.mean) == [123.675, 116.28, 103.53]
    assert not list(normalisation(cfg))
    cfg.model.data_preprocessor.mean = [0.0, 0.0, 0.0]
    (fault,) = normalisation(cfg)
    assert name in str(fault)
    drop_weights(cfg.model)
    with torch.device("meta"):
        model = build_model(cfg)
    factors = [factor for _, factor in layer_factors(model, 0.5).values()]
    assert min(factors) == 0.5 ** len(model.backbone.layers())
    assert len({*factors}) == len(model.backbone.layers())
