"""Names of version 0.2 that are others now: importing an old one says the new one."""

import sys

# By the path below vitdense; a folder stands for all in it. CHANGELOG.md has every module.
MOVED = {
    "backbones": "models: backbones.swin is models.swin.model",
    "weights": "checkpoint; naming schemes are in models.<family>.checkpoint",
    "engine": "mm: its modules are in mm.config, mm.data, mm.train, mm.checks and mm.cli",
    "datasets": "mm.data",
    "heads": "mm.heads",
    "ops": "mm.ops",
    "pretraining": "research.pretraining",
    "cost": "inspect.cost",
    "draw": "inspect.draw",
    "export": "inspect.export",
    "report": "inspect.flops",
    "show": "inspect.show",
    "layers.performer": "research.swin_ablations.performer",
    "layers.class_attention": "research.cait.model",
    "layers.non_local": "research.non_local.attention",
    "necks.bifpn": "mm.heads.reppoints_v2.bifpn",
    "models.create": "hub.create",
    "models.list_models": "hub.list_models",
    "models.Model": "models.rows.Model",
    "models.find_model": "models.table.find_model",
}


class _Finder:
    """Last in `sys.meta_path`: asked for what nothing else has found."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if new := MOVED.get(name.removeprefix("vitdense.")) if name.startswith("vitdense.") else None:
            raise ImportError(f"{name} is vitdense.{new}; CHANGELOG.md lists the names that changed")


def install() -> None:
    """Install the finder; calling it again changes nothing."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
