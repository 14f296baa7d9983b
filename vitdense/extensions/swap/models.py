"""Another backbone in a config: the lines to change, and whether the new model runs."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement

from vitdense.extensions.swap.changes import model_changes
from vitdense.files import read_text
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.config.print import code
from vitdense.mm.config.query import as_list, drop_weights
from vitdense.mm.errors import ConfigError

SIDE = 256  # of the test image, in pixels: DINO needs as many map positions as it has queries


def changed_lines(cfg: Config, backbone: str | None) -> str:
    """The lines of a config that inherits from `cfg` with another backbone; see `model_changes`."""
    imports = as_list((cfg.get("custom_imports") or {}).get("imports"))
    imports = {"imports": ["vitdense", *(name for name in imports if name != "vitdense")]}
    return (
        f"custom_imports = {code({**imports, 'allow_failed_imports': False})}\n"
        f"model = {code(model_changes(cfg, backbone), prefix=8)}\n"
    )


def try_model(path: Path, name: str) -> str:
    """Build the model of a config, with random weights, and predict; the name of its class."""
    meta = {"img_shape": (SIDE, SIDE), "ori_shape": (SIDE, SIDE), "scale_factor": (1.0, 1.0)}
    try:
        cfg = load_config(path)
        drop_weights(cfg.model)  # random weights suffice
        model = build_model(cfg).eval()
        channels = len((cfg.model.get("data_preprocessor") or {}).get("mean") or range(3))
        image = torch.zeros(channels, SIDE, SIDE, dtype=torch.uint8)
        with torch.no_grad():
            model.test_step({"inputs": [image], "data_samples": [BaseDataElement(metainfo=meta)]})
    except Exception as error:  # models can raise anything
        reason = next(iter(str(error).strip().splitlines()), "no message")
        raise ConfigError(
            f"{name}: with the new backbone the model does not build or predict ({type(error).__name__}: {reason}); "
            f"parts that depend on the old one must be written by hand:\n{read_text(path)}"
        ) from error
    return type(model).__name__
