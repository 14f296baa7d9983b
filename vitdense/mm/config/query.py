"""What a config says: its dicts, data sets, pipelines, heads and classes."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, Registry

from vitdense.families import Model, row_of
from vitdense.files import read_text
from vitdense.mm.data.classes import clean
from vitdense.mm.data.coco import overview
from vitdense.mm.errors import ConfigError
from vitdense.seams import ask, loaders

NO_TILES = "tiles: got a segmentor, expected a detector; set test_cfg=dict(mode='slide', crop_size=..., stride=...)"
SPLITS = ("train", "val", "test")
UNSEEN = ("meta_keys", "backend_args")  # options of pipeline steps that change no pixel
PARTS = ("num_things_classes", "num_stuff_classes")  # of a panoptic head
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


def tiled_pipeline(pipeline: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """`split_pipeline` for a `TiledDetector`, which takes the image as it is loaded, or windows of its file."""
    (first, *labels, pack), of_tile = split_pipeline(pipeline)
    return [ask("images", "in_windows", first) or first, *labels, dict(type="vitdense.PackArray", pack=pack)], of_tile


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


def test_steps(cfg: Config) -> list[dict]:
    return [step for step in next(leaf_datasets(cfg.test_dataloader.dataset)).pipeline if not loads_labels(step)]


def pixel_steps(cfg: Config) -> list[dict]:
    """The `test_steps` in a form to compare: types without scopes, without `UNSEEN` options."""
    return [
        {key: value for key, value in step.items() if key not in UNSEEN} | {"type": type_name(step)}
        for step in test_steps(cfg)
        if not type_name(step).startswith("Pack")
    ]


def reads_coco(kind: type) -> bool:
    """Whether a data set reads instances as mmdet's CocoDataset does. Panoptic data and LVIS have other keys."""
    coco = next((base for base in kind.__mro__ if base.__name__ == "CocoDataset"), None)
    return all(getattr(kind, name) is getattr(coco, name, None) for name in ("parse_data_info", "load_data_list"))


def is_panoptic(kind: type) -> bool:
    """Whether a data set has segments of things and of stuff, as mmdet's CocoPanopticDataset."""
    return "thing_classes" in getattr(kind, "METAINFO", {})


def numbers_by_file(kind: type) -> bool:
    """Whether a data set numbers labels by the order of categories in its file, whatever its `metainfo` says."""
    return hasattr(kind, "COCOAPI") and not hasattr(kind.COCOAPI, "by_name")


def annotation_file(dataset: dict) -> str | None:
    """Path or address of the JSON file of annotations of a data set, which may not exist; None if it has none."""
    name = str(dataset.get("ann_file") or "")
    return os.path.join(dataset.get("data_root") or "", name) if name.endswith(".json") else None


def local_file(dataset: dict) -> Path | None:
    """The `annotation_file` if it exists on this machine."""
    path = Path(annotation_file(dataset) or os.sep)
    return path if path.is_file() else None


def _states_classes(dataset: dict) -> bool:
    """Whether the config or the annotation file of a data set names its classes, and not only its type."""
    return "classes" in (dataset.get("metainfo") or {}) or local_file(dataset) is not None


def dataset_classes(dataset: dict, kind: type) -> tuple[str, ...] | None:
    """Class names of a data set: from its `metainfo`, else its annotation file, else its type."""
    given = (dataset.get("metainfo") or {}).get("classes")
    if given is not None:
        return tuple(map(clean, read_text(given).splitlines() if isinstance(given, str) else given))
    if file := local_file(dataset):
        found = overview(file)
        return found.things_first if is_panoptic(kind) else found.categories
    known = kind.METAINFO.get("classes")
    return None if known is None else tuple(known)


def effective_classes(dataset: dict, kind: type) -> tuple[str, ...] | None:
    """Class names that mm will give a data set: from its `metainfo`, else its type."""
    return dataset_classes({"metainfo": dataset.get("metainfo")}, kind)


def model_classes(cfg: Config) -> tuple[str, ...] | None:
    """Class names of the model in the order of its labels: of all training data sets without duplicates, else of the
    other data."""
    deciding, kind = _deciding(cfg)
    if len(deciding) == 1:
        return dataset_classes(deciding[0], kind) if kind else None
    names = dict.fromkeys(name for dataset in deciding for name in dataset_classes(dataset, kind) or ())
    if kind is not None and is_panoptic(kind):
        things = {name for dataset in deciding for name in _things(dataset, kind) or ()}
        return tuple(sorted(names, key=lambda name: name not in things))
    return tuple(names) or None


def model_things(cfg: Config) -> int | None:
    """How many of `model_classes` are things; None for data without stuff."""
    deciding, kind = _deciding(cfg)
    if kind is None or not is_panoptic(kind):
        return None
    things = [_things(dataset, kind) for dataset in deciding]
    return None if None in things else len({name for names in things for name in names})


def lacks_classes(cfg: Config) -> bool:
    """Whether a config has the classes of an annotation file that is not on this machine."""
    deciding, kind = _deciding(cfg)
    absent = any(annotation_file(dataset) and not _states_classes(dataset) for dataset in deciding)
    return absent and kind is not None and not getattr(kind, "drawn_on_demand", False)


def _things(dataset: dict, kind: type) -> Sequence[str] | None:
    return (dataset.get("metainfo") or kind.METAINFO).get("thing_classes")


def _deciding(cfg: Config) -> tuple[list[dict], type | None]:
    """The data sets that decide the classes, all of one split and type; and that type."""
    leaves = all_datasets(cfg)
    alike = [leaf for leaf in leaves if leaf[1]["type"] == leaves[0][1]["type"]]
    # The training file may be on another machine.
    stating = [leaf for leaf in alike if _states_classes(leaf[1])] or alike[:1]
    datasets = [dataset for split, dataset, _ in stating if split == stating[0][0]]
    stated = [dataset for dataset in datasets if "classes" in (dataset.get("metainfo") or {})]
    return stated or datasets, stating[0][2] if stating else None


def all_datasets(cfg: Config) -> list[tuple[str, dict, type | None]]:
    """Split, config and class of every data set; the class is None if it is not registered."""
    found = []
    for split in SPLITS:
        for dataset in leaf_datasets(cfg[f"{split}_dataloader"].dataset) if cfg.get(f"{split}_dataloader") else ():
            found.append((split, dataset, find_class(DATASETS, dataset["type"], cfg)))
    return found


def class_counts(model: dict) -> set[int]:
    """The numbers of classes that a model's heads state; things and stuff are summed."""
    found = {head.get("num_classes") for _, head in class_heads(model)} - {None}
    return found | {sum(head[part] for part in PARTS) for head in nodes(model) if head.keys() >= {*PARTS}}


def image_size(cfg: Config) -> tuple[int, int]:
    """The size (h, w) that ``settings.image_size`` sets: of a detector's images in validation (without one, in the
    test), or of a segmentor's crops in training. Where images keep their ratio, the short and the long side."""
    size, keeps_ratio = _size(cfg)
    return tuple(sorted(size)) if keeps_ratio else size


def has_one_size(cfg: Config) -> bool:
    """Whether all images of a config, or all crops, have one size, which may be a rectangle."""
    return not _size(cfg)[1]


def _size(cfg: Config) -> tuple[tuple[int, int], bool]:
    """The size (h, w) of the first step with one, and whether it keeps the ratio of an image."""
    is_crop = cfg.get("default_scope") == "mmseg"
    splits, key = (("train",), "crop_size") if is_crop else (("val", "test"), "scale")
    loaders = [f"{split}_dataloader" for split in splits]
    loader = next(filter(cfg.get, loaders), None)
    if loader is None:
        got = f"got neither {' nor '.join(loaders)}, whose pipeline has the size"
        raise ConfigError(f"settings.image_size (--image-size): {got}; keep one, or set the sizes of the steps")
    for node in nodes(cfg.get(loader)):
        if found := sides(node.get(key)):
            size = found[0], found[-1]
            return (size if is_crop else size[::-1]), bool(node.get("keep_ratio"))
    step = "Resize, scale=(1333, 800)" if key == "scale" else "RandomCrop, crop_size=(512, 512)"
    raise ConfigError(
        f"settings.image_size (--image-size): no step of {loader} has a {key}; add one, such as {step}, or set the "
        f"sizes of the steps themselves"
    )


def sides(value: Any) -> list[int]:
    """The numbers in a size of a config: a number, a pair, or a list of them."""
    parts = value if isinstance(value, (list, tuple)) else ()
    return [value] if isinstance(value, int) else [side for part in parts for side in sides(part)]
