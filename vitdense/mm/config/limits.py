"""Images with many objects: the limits of a detector and of its metric."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from vitdense.mm.config.base import flat

# Keys of mmdet that limit a number per image, and the least of it per object.
LIMITS = {"max_per_img": 1, "max_per_image": 1, "num_queries": 1, "num_proposals": 1, "nms_pre": 2}
MARGIN = 2  # factor of a raised limit over what is needed
PROPOSAL_NUMS = (100, 300, 1000)  # default of mmdet's COCO metrics; AP counts the last number per class and image


def raised_limits(cfg: Config, densest: int, at_once: int | None = None) -> dict[str, Any]:
    """Limits that a detector and its metric need for the `densest` objects of an image, where theirs are too low.

    A detector in tiles sees `at_once` of them. Values are in hundreds, by dotted keys such as
    ``model.test_cfg.rcnn.max_per_img``.
    """
    raised: dict[str, Any] = {}
    for key, value in flat(cfg.model, "model", lambda node: isinstance(node, dict)).items():
        parent, _, name = key.rpartition(".")
        needed = LIMITS.get(name, 0) * (densest if at_once is None else at_once)
        if name == "max_per_img" and ".rpn" in parent:
            needed *= 2  # proposals
        if isinstance(value, int) and 0 < value < needed:  # below 0: none
            raised[key] = _hundreds(MARGIN * needed)
    evaluator = cfg.get("val_evaluator")
    numbers = evaluator.get("proposal_nums", PROPOSAL_NUMS) if isinstance(evaluator, Mapping) else (densest,)
    if numbers[-1] < densest:
        raised["val_evaluator.proposal_nums"] = [*numbers[:-1], _hundreds(MARGIN * densest)]
    return raised


def as_options(limits: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}".replace(" ", "") for key, value in limits.items())


def _hundreds(number: int) -> int:
    return -(-number // 100) * 100
