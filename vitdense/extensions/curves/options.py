"""The part of the extension for ``vitdense train``."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config


def change(cfg: "Config", args: argparse.Namespace) -> None:
    """Draw curves at the end of the training, unless the user has set ``default_hooks.curves``."""
    if "default_hooks.curves" not in cfg.given:
        cfg.default_hooks.setdefault("curves", {"type": "vitdense.CurvesHook"})
