"""detectron2's names for whole detectors with a simple feature pyramid, as of ViTDet and EVA-02."""

from vitdense.checkpoint.rename import Rule

_MASKS, _BOXES, _RPN = "roi_heads.mask_head", "roi_heads.box_head.{k}", "proposal_generator.rpn_head"


def _conv(theirs: str, conv: str, norm: str) -> tuple[Rule, Rule]:
    """A convolution with a LayerNorm, which detectron2 keeps inside of it."""
    return Rule(f"{theirs}.weight", f"{conv}.weight"), Rule(f"{theirs}.norm.*", f"{norm}.*")


# To mmdet's Cascade Mask R-CNN with `DeconvPyramid`. The trunk keeps detectron2's names.
DETECTOR = (
    Rule("backbone.net.*", "backbone.*"),
    *(Rule(f"backbone.simfp_2.{n}.*", f"neck.levels.0.{n}.*") for n in (0, 1, 3)),
    Rule("backbone.simfp_3.0.*", "neck.levels.1.0.*"),
    *(
        rule
        for level, first in enumerate((4, 1, 0, 1))  # of the two convolutions after those that enlarge
        for n in (0, 1)
        for rule in _conv(
            f"backbone.simfp_{level + 2}.{first + n}", *(f"neck.convs.{level}.{i}" for i in (2 * n, 2 * n + 1))
        )
    ),
    Rule(f"{_RPN}.conv.conv{{i}}.*", "rpn_head.rpn_conv.{i}.conv.*"),
    Rule(f"{_RPN}.objectness_logits.*", "rpn_head.rpn_cls.*"),
    Rule(f"{_RPN}.anchor_deltas.*", "rpn_head.rpn_reg.*"),
    *_conv(f"{_BOXES}.conv{{i+1}}", *(f"roi_head.bbox_head.{{k}}.shared_convs.{{i}}.{x}" for x in ("conv", "ln"))),
    Rule(f"{_BOXES}.fc{{i+1}}.*", "roi_head.bbox_head.{k}.shared_fcs.{i}.*"),
    Rule("roi_heads.box_predictor.{k}.cls_score.*", "roi_head.bbox_head.{k}.fc_cls.*"),
    Rule("roi_heads.box_predictor.{k}.bbox_pred.*", "roi_head.bbox_head.{k}.fc_reg.*"),
    *_conv(f"{_MASKS}.mask_fcn{{i+1}}", *(f"roi_head.mask_head.convs.{{i}}.{x}" for x in ("conv", "ln"))),
    Rule(f"{_MASKS}.deconv.*", "roi_head.mask_head.upsample.*"),
    Rule(f"{_MASKS}.predictor.*", "roi_head.mask_head.conv_logits.*"),
)
