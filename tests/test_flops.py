import pytest
import torch
from conftest import LARGER, needs_research
from torch import nn

from vitdense.flops import Row, count, macs, table
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config


def test_macs_of_a_linear_layer_a_convolution_and_attention():
    x = torch.empty(2, 10, 8, device="meta")
    linear = nn.Linear(8, 4, device="meta")
    assert macs(lambda: linear(x))[1] == 2 * 10 * 8 * 4
    conv = nn.Conv2d(3, 5, 3, padding=1, device="meta")
    assert macs(lambda: conv(torch.empty(1, 3, 6, 7, device="meta")))[1] == 6 * 7 * 5 * 3 * 9
    q = torch.empty(2, 3, 10, 4, device="meta")
    assert macs(lambda: nn.functional.scaled_dot_product_attention(q, q, q))[1] == 2 * (2 * 3 * 10 * 10 * 4)


TOTALS = [  # config, millions of parameters, billions of MACs
    ("cascade_swin_t_coco", 85.63, 744.8),
    ("cascade_swin_s_coco", 106.95, 836.8),
    ("cascade_swin_b_coco", 144.98, 981.3),
    ("mask_rcnn_swin_t_coco", 47.8, 266.5),
    ("cascade_mvitv2_t_coco", 75.85, 699.2),
    ("cascade_mvitv2_s_coco", 86.54, 746.5),
    ("cascade_mvitv2_b_coco", 103.15, 811.9),
    ("cascade_mvitv2_l_coco", 265.1, 1470.5),
    ("mask_rcnn_mvitv2_t_coco", 43.68, 277.6),
    ("cascade_deit_s_coco", 79.8, 888.3),
    ("cascade_convnext_t_coco", 85.93, 741),
    ("atss_swin_t_coco", 35.73, 214.4),
    ("sparse_rcnn_swin_t_coco", 109.74, 175.6),
    ("upernet_swin_t_ade20k", 59.94, 944.4),
    ("upernet_swin_s_ade20k", 81.26, 1037.4),
    ("upernet_swin_b_ade20k", 121.28, 1187.4),
    ("upernet_deit_s_ade20k", 51.8, 1097.8),
    ("upernet_convnext_t_ade20k", 60.24, 939),
]
OF_RESEARCH = [
    ("cascade_nat_t_coco", 85.38, 737),
    ("upernet_nat_t_ade20k", 57.70, 934),
    ("htcpp_swin_b_coco", 159.54, 1042.7),
    ("htcpp_without_semantic_swin_b_coco", 156.73, 997.5),
    ("htcpp_swin_l_coco", 283.77, 1469.7),
    ("reppoints_v2_swin_t_coco", 44.92, 282.0),
    ("reppoints_v2_r50_coco", 42.13, 272.2),
    ("atss_r50_coco", 32.30, 204.5),
    ("sparse_rcnn_r50_coco", 106.34, 168.3),
    ("mask_rcnn_r50_nonlocal_coco", 46.50, 284.1),
]
OF_TRANSFORMERS = [  # its EoMT, to the digits, 0.01 %, in which they are given
    ("eomt_dinov2_s_640_coco_panoptic", 23.98, 67.8),
    pytest.param("eomt_dinov2_b_640_coco_panoptic", 93.66, 215.5, marks=pytest.mark.slow),
    ("eomt_dinov2_l_640_coco_panoptic", 316.70, 668.0),
    pytest.param("eomt_dinov2_l_512_ade20k", 316.02, 394.1, marks=pytest.mark.slow),
]


def built(name):
    with torch.device("meta"):
        return build_model(load_config(name)).eval()


def marks_of(name):
    is_slow = name in {path.stem for path in LARGER}
    return [pytest.mark.slow] * is_slow + [needs_research] * any(name == row[0] for row in OF_RESEARCH)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "params_m", "gmacs"), [pytest.param(*row, marks=marks_of(row[0])) for row in TOTALS + OF_RESEARCH]
)
def test_published_totals(name, params_m, gmacs):
    """At 800x1280, segmentors at 512x2048; MACs to 0.5 %."""
    model = built(name)
    rows = count(model, (512, 2048) if "ade20k" in name else (800, 1280))
    assert rows[0].name == "backbone"
    assert sum(row.params for row in rows) == sum(p.numel() for p in model.parameters())
    assert sum(row.params for row in rows) / 1e6 == pytest.approx(params_m, abs=0.05)
    assert sum(row.macs for row in rows) / 1e9 == pytest.approx(gmacs, rel=0.005)
    if "upernet" in name:
        assert [row.name for row in rows[-2:]] == ["decode_head", "auxiliary_head (training only)"]
        assert rows[-1].params > 0 == rows[-1].macs  # it does not run at test time


@pytest.mark.long
@pytest.mark.parametrize(("name", "params_m", "gmacs"), OF_TRANSFORMERS)
def test_totals_of_eomt(name, params_m, gmacs):
    rows = count(built(name), (512, 512) if "ade20k" in name else (640, 640))
    assert sum(row.params for row in rows) / 1e6 == pytest.approx(params_m, abs=0.005)
    assert sum(row.macs for row in rows) / 1e9 == pytest.approx(gmacs, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape", "params_m", "parts"),
    [
        ("dino_swin_t_coco", (256, 320), 48.32, ["backbone", "neck", "transformer", "bbox_head"]),
        ("mask2former_swin_t_coco", (256, 320), 47.42, ["backbone", "panoptic_head"]),
        ("mask2former_swin_t_ade20k", (256, 320), 47.44, ["backbone", "decode_head"]),
    ],
)
def test_transformer_heads_are_counted_as_they_run(name, shape, params_m, parts):
    """MACs after the backbone: of linear layers and convolutions by hooks, and of attention by its sizes."""
    model, found = built(name), []

    def of_layer(module, args, result):
        reads = module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.in_features
        found.append(result.numel() * reads)

    def of_attention(module, args, kwargs, result):
        queries, keys = kwargs["query"].shape[0], kwargs["key"].shape[0]  # [N, B, C]
        dim = module.embed_dim
        found.append(2 * (queries + keys) * dim**2 + 2 * queries * keys * dim)

    for part in (value for key, value in model.named_children() if key not in ("backbone", "neck")):
        for module in part.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(of_layer)
            elif isinstance(module, nn.MultiheadAttention):
                module.register_forward_hook(of_attention, with_kwargs=True)
    rows = count(model, shape)
    assert [row.name for row in rows] == parts
    assert sum(row.params for row in rows) == sum(p.numel() for p in model.parameters())
    assert sum(row.params for row in rows) / 1e6 == pytest.approx(params_m, abs=0.05)
    if "mask2former" in name:  # products of 100 queries with the map of stride 4, before and after 9 layers
        found.append(10 * 100 * 256 * shape[0] * shape[1] // 16)
    assert sum(row.macs for row in rows if row.name not in ("backbone", "neck")) == sum(found)


def test_table_ends_with_the_total():
    lines = table([Row("backbone", 1_500_000, 2 * 10**9), Row("neck", 500_000, 10**9)]).splitlines()
    assert lines[-1].split() == ["total", "2.000", "3.00"]


def test_model_without_a_known_head_is_an_error():
    model = nn.Module()
    model.backbone = nn.Identity()
    with pytest.raises(ValueError, match="decode_head"):
        count(model, (32, 32))


@pytest.mark.long
@pytest.mark.parametrize(("size", "params"), [("s", 7_692_038), ("b", 30_424_454), ("l", 53_935_238)])
def test_parameters_of_the_decoders_of_pmt(size, params):
    model = built(f"pmt_dinov3_{size}_640_coco_panoptic")
    assert sum(p.numel() for p in model.panoptic_head.parameters()) == params
    assert not any(p.requires_grad for p in model.backbone.parameters())
