"""Makes `mmcv._ext` importable: the compiled extension if it loads, else the stand-in of `vitdense.ops.stand_in`.

Imports the standard library only. `import vitdense` installs the finder.
"""

import importlib
import importlib.machinery
import importlib.util
import logging
import sys
from types import ModuleType
from typing import NamedTuple

from vitdense.ops.table import BUILD_COMMAND, find_op

NAME = "mmcv._ext"
INSTALL_MM = "pip install 'vitdense[mm]'"
logger = logging.getLogger("vitdense")


class OpsInUse(NamedTuple):
    """What `mmcv.ops` uses: "compiled", "stand-in", "mmcv not installed" or "not loadable"; and its path or why."""

    kind: str
    detail: str = ""


def install() -> None:
    """Install the import hook for `mmcv._ext`; calling it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def ops_in_use() -> OpsInUse:
    """Import `mmcv._ext` if mmcv is installed, and return which one it is; never raises."""
    if importlib.util.find_spec("mmcv") is None:
        return OpsInUse("mmcv not installed")
    try:
        module = importlib.import_module(NAME)
    except Exception as error:  # any error of mmcv or its dependencies is part of the report
        return OpsInUse("not loadable", f"{type(error).__name__}: {error}")
    if isinstance(getattr(module.__spec__, "loader", None), _StandInLoader):
        return OpsInUse("stand-in", f"vitdense on torchvision; {module.reason}")
    return OpsInUse("compiled", str(getattr(module, "__file__", "")))


class _Finder:
    """Meta path finder for the one name `mmcv._ext`; `mmcv` itself is found as usual."""

    @staticmethod
    def find_spec(fullname: str, path=None, target=None):
        if fullname != NAME:
            return None
        compiled = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        # A spec without loader is a namespace package: a bare folder `_ext` on the path, no extension.
        if compiled is None or compiled.loader is None:
            return importlib.machinery.ModuleSpec(NAME, _StandInLoader("no compiled mmcv._ext is installed"))
        compiled.loader = _CompiledLoader(compiled.loader)
        return compiled


class _StandInLoader:
    def __init__(self, reason: str):
        self.reason = reason

    def create_module(self, spec):
        return None  # the import system makes an ordinary module

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"Stand-in of vitdense for the compiled ops of mmcv: {self.reason}."
        module.reason = self.reason
        module.__getattr__ = find_op
        logger.info("mmcv ops: stand-in on torchvision and plain torch (%s)", self.reason)


class _CompiledLoader:
    """Loads a compiled extension; one that does not load with this torch is replaced by the stand-in."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        try:
            import torch  # noqa: F401  (loads the shared libraries that the extension needs)

            module = self.loader.create_module(spec)
        except (ImportError, OSError) as error:
            logger.warning(
                "mmcv ops: the compiled %s does not load (%s: %s); using the stand-in on torchvision. "
                "To use compiled ops, build them for the installed torch: %s",
                spec.origin,
                type(error).__name__,
                error,
                BUILD_COMMAND,
            )
            self.loader = _StandInLoader(f"the compiled {spec.origin} does not load")
            spec.has_location = False  # no `__file__`
            return None
        logger.info("mmcv ops: compiled, %s", spec.origin)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self.loader  # for reload and inspect
        self.loader.exec_module(module)
