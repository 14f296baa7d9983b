import pytest

from vitdense.mm.config.limits import raised_limits
from vitdense.mm.config.load import load_config

RPN = ("train_cfg.rpn_proposal.max_per_img", "test_cfg.rpn.nms_pre", "test_cfg.rpn.max_per_img")


@pytest.mark.parametrize(
    ("name", "densest", "raised"),
    [
        *((f"{name}_swin_t_coco", number, {}) for name in ("cascade", "dino", "atss") for number in (0, 93, 100)),
        ("mask_rcnn_swin_t_coco", 101, {"test_cfg.rcnn.max_per_img": 300}),
        ("mask_rcnn_swin_t_coco", 600, {"test_cfg.rcnn.max_per_img": 1200, **dict.fromkeys(RPN, 2400)}),
        ("dino_swin_t_coco", 500, {"test_cfg.max_per_img": 1000}),
        ("dino_swin_t_coco", 950, {"num_queries": 1900, "test_cfg.max_per_img": 1900}),
        ("sparse_rcnn_swin_t_coco", 301, {"rpn_head.num_proposals": 700, "test_cfg.rcnn.max_per_img": 700}),
        ("mask2former_swin_t_coco", 101, {"panoptic_head.num_queries": 300, "test_cfg.max_per_image": 300}),
    ],
)
def test_only_limits_below_the_densest_image_are_raised(name, densest, raised):
    cfg = load_config(name)
    assert raised_limits(cfg, densest) == {f"model.{key}": value for key, value in raised.items()}
    cfg.merge_from_dict(raised_limits(cfg, densest))
    assert raised_limits(cfg, densest) == {}


def test_the_metric_counts_all():
    cfg = load_config("atss_swin_t_coco")
    assert "val_evaluator.proposal_nums" not in raised_limits(cfg, 1000)
    assert [*raised_limits(cfg, 1001, 10)] == ["val_evaluator.proposal_nums"]  # a tile sees fewer, the metric all
    assert raised_limits(cfg, 1001)["val_evaluator.proposal_nums"] == [100, 300, 2100]
    cfg.val_evaluator = [cfg.val_evaluator, cfg.val_evaluator]  # cannot be set by one key
    assert "val_evaluator.proposal_nums" not in raised_limits(cfg, 1001)
