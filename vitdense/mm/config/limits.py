"""Images with many objects: the limits of a detector and of its metric."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

# Keys of mmdet that limit the number of something per image, and how many of it an object needs at least.
LIMITS = {"max_per_img": 1, "max_per_image": 1, "num_queries": 1, "num_proposals": 1, "nms_pre": 2}
MARGIN = 2  # a raised limit is so many times what is needed
PROPOSAL_NUMS = (100, 300, 1000)  # default of mmdet's COCO metrics; AP counts the last number per class and image


def raised_limits(cfg: Config, densest: int) -> dict[str, Any]:
    """What a detector's config must change to find, and its metric to count, the objects of the densest image.

    Limits that suffice stay: a recipe's 100 detections do for COCO.

    Args:
        cfg: The config.
        densest: Most objects of an image.

    Returns:
        Values by dotted keys, such as ``model.test_cfg.rcnn.max_per_img``, in hundreds.
    """
    raised: dict[str, Any] = {
        key: _hundreds(MARGIN * needed * densest)
        for key, value, needed in _limits("model", cfg.model)
        if 0 < value < needed * densest  # below 0: none
    }
    evaluator = cfg.get("val_evaluator")
    numbers = evaluator.get("proposal_nums", PROPOSAL_NUMS) if isinstance(evaluator, Mapping) else (densest,)
    if numbers[-1] < densest:
        raised["val_evaluator.proposal_nums"] = [*numbers[:-1], _hundreds(MARGIN * densest)]
    return raised


def as_options(limits: Mapping[str, Any]) -> str:
    """Limits as ``--cfg-options`` takes them."""
    return " ".join(f"{key}={value}".replace(" ", "") for key, value in limits.items())


def _hundreds(number: int) -> int:
    return -(-number // 100) * 100


def _limits(path: str, node: Any) -> Iterator[tuple[str, int, int]]:
    """Dotted key, value and what an object needs, of every limit in a part of a config."""
    for name, value in node.items() if isinstance(node, Mapping) else ():
        if name in LIMITS and isinstance(value, int):
            is_proposals = name == "max_per_img" and ".rpn" in path
            yield f"{path}.{name}", value, 2 if is_proposals else LIMITS[name]
        yield from _limits(f"{path}.{name}", value)
