"""Configs: reading, changing and walking through them."""

from importlib.util import find_spec

from vitdense.ops.finder import INSTALL_MM

if find_spec("mmengine") is None:
    raise ModuleNotFoundError(
        f"the recipes, tools and commands need mmengine, mmcv and mmdet or mmseg: {INSTALL_MM}",
        name="mmengine",
    )
