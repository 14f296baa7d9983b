"""Vision-transformer backbones for dense prediction.

`create` builds a backbone by name, `load` a trained detector or segmentor; in configs of mmdet and mmseg the classes
are ``type='vitdense.Swin'``. Importing the package also makes `mmcv.ops` importable without a compiler; it imports
neither torch nor any package of mm.
"""

from importlib import import_module
from typing import Any

from vitdense.families import FOLDERS
from vitdense.ops.finder import install as _install_ops
from vitdense.seams import merged

__version__ = "0.4.0.dev0"
_LAZY = {  # name: the module that has it, imported when the name is first used
    **dict.fromkeys(("create", "list_models"), "vitdense.hub"),
    "load": "vitdense.mm.predictor",
    **{name: f"{folder}.model" for name, folder in FOLDERS.items()},
    **dict.fromkeys(("JointViT", "TokenViT"), "vitdense.models.vit.tokens"),
    "WindowedViT": "vitdense.models.vit.windowed",
    "DeconvPyramid": "vitdense.necks",
    "empty_cache": "vitdense.layers.layout",
    **merged("names"),
}
__all__ = [*_LAZY]

_install_ops()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'vitdense' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
