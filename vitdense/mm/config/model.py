"""What replaces a model in a test: tiles, augmentation, an exported file; and masks as run-length codes."""

from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS, MODELS
from torch import nn

from vitdense.mm.config.base import Asked
from vitdense.mm.config.query import (
    NO_TILES,
    as_list,
    find_class,
    hooks,
    leaf_datasets,
    loads_labels,
    nodes,
    split_pipeline,
    tiled_pipeline,
)
from vitdense.mm.errors import ConfigError

# Mask heads of mmdet -> the same with masks as run-length codes.
HEADS = {
    "FCNMaskHead": "vitdense.RLEMaskHead",
    "HTCMaskHead": "vitdense.RLEHTCMaskHead",
    "MaskFormerFusionHead": "vitdense.RLEMaskFormerFusionHead",
}


def encode_masks(cfg: Config, asked: Asked) -> None:
    """Use run-length codes for masks where metrics take them, and do not load annotated masks.

    Memory then does not grow with the number of masks. Masks of tiles are codes too.
    """
    if not find_spec("mmdet") or cfg.get("default_scope") == "mmseg":
        return
    takes_codes = takes_rle(cfg)
    if takes_codes or asked.inference.tiles is not None:
        use_rle(cfg.model)
    for step in nodes([cfg.get(f"{split}_dataloader") for split in ("val", "test")]) if takes_codes else ():
        if loads_labels(step):
            step["with_mask"] = False  # would load [N, H, W]


def use_rle(model: dict) -> None:
    for node in nodes(model):
        if (kind := str(node.get("type")).rpartition(".")[2]) in HEADS:
            node["type"] = HEADS[kind]


def empty_backbone(cfg: Config, asked: Asked) -> None:
    """Build a backbone of ours on the meta device: initialising a ViT-L takes six seconds."""
    backbone = cfg.model.get("backbone") or {}
    kind = find_class(MODELS, backbone.get("type"), cfg) if backbone else None
    if getattr(kind, "takes_tensors", False):

        def build(**options: Any) -> nn.Module:
            with torch.device("meta"):
                return kind(**options)

        cfg.model.backbone = {**backbone, "type": build}


def takes_rle(cfg: Config) -> bool:
    """Whether masks of validation and test may be codes and annotated masks need not be loaded.

    So it is if all metrics are mmdet's COCO metrics of an annotation file, and no hook looks at predictions.
    """
    from mmdet.evaluation import CocoMetric  # imported here: segmentors do without mmdet

    metrics = [one for split in ("val", "test") for one in as_list(cfg.get(f"{split}_evaluator"))]
    kinds = [find_class(METRICS, metric["type"], cfg) for metric in metrics if metric.get("ann_file")]
    of_coco = all(kind and issubclass(kind, CocoMetric) for kind in kinds)
    return 0 < len(kinds) == len(metrics) and of_coco and not any(_looks(hook, cfg) for _, hook in hooks(cfg))


def _looks(hook: dict, cfg: Config) -> bool:
    """Whether a hook looks at predictions. mmengine's do not; mm's visualization hooks do if they draw."""
    kind = find_class(HOOKS, hook["type"], cfg)
    if kind is None or kind.__module__.startswith("mmengine."):
        return False
    draws = hook.get("draw", getattr(signature(kind).parameters.get("draw"), "default", True))
    called = ("after_val_iter", "after_test_iter", "_after_iter")  # with predictions
    return bool(draws) and any(getattr(kind, name) is not getattr(Hook, name) for name in called)


def augment_tests(cfg: Config, asked: Asked) -> None:
    """Wrap the model for test-time augmentation, and replace the test pipeline."""
    if not asked.tta:
        return
    if absent := [key for key in ("tta_pipeline", "tta_model") if not cfg.get(key)]:
        raise ConfigError(
            f"--tta: the config has no {' and no '.join(absent)}; configs/_base_/seg_data.py has both for a segmentor, "
            f"configs/research/_base_/coco_htcpp.py for a detector with masks"
        )
    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        dataset.pipeline = cfg.tta_pipeline
    cfg.model = dict(cfg.tta_model, module=cfg.model)


def tile_tests(cfg: Config, asked: Asked) -> None:
    """Wrap the detector for tiles, and split the test pipeline between image and tiles."""
    if asked.inference.tiles is None:
        return
    if cfg.get("default_scope") == "mmseg":
        raise ConfigError(NO_TILES)
    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        dataset.pipeline, steps = tiled_pipeline(dataset.pipeline)
    tiles = dict(side=asked.inference.tiles, overlap=asked.inference.overlap, pipeline=steps)
    cfg.model = dict(type="vitdense.TiledDetector", module=cfg.model, **tiles)


def test_exported(cfg: Config, asked: Asked) -> None:
    """Replace the model by an exported file, which takes photos."""
    if not asked.exported:
        return
    import vitdense.mm.heads.exported  # noqa: F401  registers it

    for dataset in leaf_datasets(cfg.test_dataloader.dataset):
        dataset.pipeline, _ = split_pipeline(dataset.pipeline)
    cfg.model = dict(type="vitdense.ExportedModel", path=asked.exported)
