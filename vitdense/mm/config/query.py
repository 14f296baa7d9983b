"""Find things in a config: dicts, data sets, heads with classes, the classes that it names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry

from vitdense.families import Model, row_of
from vitdense.seams import loaders

SPLITS = ("train", "val", "test")
# Heads with the classes of the data set. Others, such as a detector's semantic branch, have their own classes.
CLASS_HEADS = ("bbox_head", "mask_head", "point_head", "mask_iou_head", "decode_head", "auxiliary_head")


def as_list(value: Any) -> list:
    """A value that a config gives alone, as a list or not at all, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value] if value else []


def nodes(node: Any) -> Iterator[dict]:
    if isinstance(node, dict):
        yield node
    if isinstance(node, (dict, list, tuple)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from nodes(value)


def mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """A part of a config with `change` applied to every value in its dicts and lists."""
    if isinstance(node, dict):
        return type(node)({key: mapped(value, change) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(mapped(value, change) for value in node)
    return change(node)


def hooks(cfg: Config) -> Iterator[tuple[str, dict]]:
    """The configs of all hooks that are not left out (None), by their dotted keys."""
    default, custom = cfg.get("default_hooks") or {}, cfg.get("custom_hooks") or []
    named = [(f"default_hooks.{name}", hook) for name, hook in default.items()]
    numbered = [(f"custom_hooks.{i}", hook) for i, hook in enumerate(custom)]
    yield from ((where, hook) for where, hook in named + numbered if hook)


def drop_weights(model: Any) -> None:
    """Remove every `init_cfg` with weights from a model's config: a checkpoint of the whole model replaces them.

    A teacher is in no checkpoint and keeps its weights.
    """
    if isinstance(model, dict):
        parts = as_list(model.get("init_cfg"))
        if any(not isinstance(part, dict) or part.get("type") == "Pretrained" for part in parts):
            model["init_cfg"] = None
        model = [part for key, part in model.items() if not key.startswith("teacher")]  # such as mmdet's teacher_config
    if isinstance(model, (list, tuple)):
        for part in model:
            drop_weights(part)


def type_name(step: object) -> str:
    kind = step.get("type") if isinstance(step, dict) else None
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def loads_labels(step: object) -> bool:
    """Whether a step of a pipeline is a loader of annotations."""
    return type_name(step) in ("LoadAnnotations", "LoadPanopticAnnotations", *loaders())


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """Configs of the data sets inside wrappers such as `RepeatDataset` and `ConcatDataset`."""
    if "datasets" in dataset:
        for part in dataset["datasets"]:
            yield from leaf_datasets(part)
    elif "dataset" in dataset:
        yield from leaf_datasets(dataset["dataset"])
    else:
        yield dataset


def find_class(registry: Registry, kind: str | type, cfg: Config) -> type | None:
    """The class that `kind` names in the scope of a config, or None."""
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(cfg.get("default_scope", "mmdet")) as scoped:
        return scoped.get(kind)


def class_heads(node: object, path: str = "model", is_head: bool = False) -> Iterator[tuple[str, dict]]:
    """The heads of a config's model with the classes of the data set: dotted path and config."""
    if isinstance(node, dict):
        if is_head:
            yield path, node
        for key, value in node.items():
            yield from class_heads(value, f"{path}.{key}", key in CLASS_HEADS)
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from class_heads(value, f"{path}.{i}", is_head)


def split_pipeline(pipeline: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """Split a test pipeline into the steps that load and pack the whole image, and the steps for each tile."""
    whole = [pipeline[0], *filter(loads_labels, pipeline), pipeline[-1]]
    return whole, [step for step in pipeline[1:] if not loads_labels(step)]


def expected_preprocessor(row: Model) -> dict[str, list[float] | bool]:
    """Options of mm's data preprocessor for a row of the model table: mean and std of 0 to 255, RGB from mm's BGR."""
    stats = {key: [round(255 * value, 3) for value in getattr(row, key)] for key in ("mean", "std")}
    return {**stats, "bgr_to_rgb": True}


def trunk_of(cfg: Config) -> Mapping:
    """The config of the backbone, or of the trunk inside a ViT-Adapter; empty for a model without backbone."""
    backbone = cfg.model.get("module", cfg.model).get("backbone") or {}  # inside the TTA wrapper
    return backbone.get("trunk", backbone)


def row_of_weights(trunk: Mapping) -> Model | None:
    """The row of the model table that a backbone starts from; None for other weights."""
    for part in as_list(trunk.get("init_cfg")):
        if not isinstance(part, Mapping):
            return row_of(str(part))
        if part.get("type") == "Pretrained" and not part.get("channels"):
            return row_of(str(part.get("checkpoint")))
    return None
