"""What the keys of a config are, wherever mmengine, mmdet, mmseg and the passes read them."""

import re
from collections.abc import Callable
from os import PathLike

from mmengine.config import Config

from vitdense.mm.config.base import ABSENT, find, flat
from vitdense.mm.config.options import TOP_LEVEL
from vitdense.mm.config.query import nodes
from vitdense.mm.errors import ConfigError


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: value is None or isinstance(value, kinds)


def _are_dicts(value: object, key: str | None = None) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(one, dict) and (key is None or key in one) for one in values)


_DICT = (_is(dict), "a dict")
_DICTS = (lambda x: x is None or (isinstance(x, (list, tuple)) and _are_dicts(x)), "a list of dicts")
_BUILT = (lambda x: x is None or _are_dicts(x, "type"), "dict(type=...), or a list of such")
_PARTS = ("auxiliary_head", "bbox_head", "data_preprocessor", "decode_head", "neck", "roi_head", "rpn_head")
MODES = ("slide", "whole", "slide_flip")  # of a segmentor; the last of depth estimators
AT = {  # dotted key: whether a value fits, and what is expected
    "default_scope": (_is(str), "text"),
    **dict.fromkeys(("auto_scale_lr", "env_cfg", "model.test_cfg", "optim_wrapper", "settings"), _DICT),
    "default_hooks": (lambda x: _is(dict)(x) and all(map(_is(dict), (x or {}).values())), "a dict of dicts"),
    **dict.fromkeys(("visualizer", "val_evaluator", "test_evaluator", *(f"model.{part}" for part in _PARTS)), _BUILT),
    **dict.fromkeys(("model", "model.backbone"), (lambda x: _are_dicts(x, "type"), "dict(type=...)")),
    **{f"{split}_{part}": _DICT for split in ("train", "val", "test") for part in ("cfg", "dataloader")},
    "custom_hooks": _DICTS,
    "param_scheduler": (lambda x: x is None or _are_dicts(x), "a dict, or a list of such"),
}
_NAME = re.compile(r"[^\s./]+(\.[^\s./]+)*")
# Numbers of layers, also in lists: half a million of them are built, for hours.
_LAYERS = re.compile(r"depths?|stacked_convs|num_\w*(blocks|cells|convs|fcs|layers|outs|stages)")
_FEW = (lambda x: not any(isinstance(n, int) and n >= 1000 for n in flat(x).values()), "fewer than 1000")
ANYWHERE = {
    "type": (lambda x: (_is(str)(x) or callable(x)) and x != "", "a name or a class"),
    "ann_file": (_is(str, PathLike, list, tuple), "text"),
    "data_prefix": (lambda x: not isinstance(x, dict) or all(map(_is(str, PathLike), x.values())), "a dict of texts"),
}
# What mm looks up, and its data: a user's variables, and what a logger is told, may have such keys too.
LOOKED_UP = {"type": (lambda x: not isinstance(x, str) or _NAME.fullmatch(x), "a name or a class")}
OF_DATA = {"dataset": (lambda x: isinstance(x, dict), "a dict"), **dict.fromkeys(("datasets", "pipeline"), _DICTS)}


def check_kinds(cfg: Config) -> None:
    """Raise a ConfigError if a key has a value of another kind than whoever reads it expects."""
    values = [(key, find(cfg, key), rule, "the config") for key, rule in AT.items()]
    data = [cfg.get(f"{split}_dataloader") for split in ("train", "val", "test")]
    built = [cfg.get(key) for key in TOP_LEVEL - {"visualizer"}]
    for rules, part in ((ANYWHERE, cfg.to_dict()), (LOOKED_UP, built), (OF_DATA, data)):
        for node in nodes(part):
            values += [(key, node[key], rule, node) for key, rule in rules.items() if key in node]
    for node in nodes(cfg.model):
        values += [(key, value, _FEW, node) for key, value in node.items() if _LAYERS.fullmatch(str(key))]
    for key, value, (fits, expected), where in values:
        if value is not ABSENT and not fits(value):
            got = f"got {key} = {str(value)[:60]} in {str(where)[:80]}"
            raise ConfigError(f"{cfg.filename}: {got}, expected {expected}")
    for split in ("train", "val", "test"):
        loader = cfg.get(f"{split}_dataloader")
        if loader is not None and "dataset" not in loader:
            raise ConfigError(f"{cfg.filename}: got no {split}_dataloader.dataset, expected dict(type=...)")
    if "decode_head" in cfg.model and (mode := (cfg.model.get("test_cfg") or {}).get("mode")) not in MODES:
        raise ConfigError(f"{cfg.filename}: got model.test_cfg.mode = {mode!r}, expected one of {MODES}")
