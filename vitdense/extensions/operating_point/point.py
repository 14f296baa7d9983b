"""The file of an operating point beside a checkpoint, valid for these weights and this preparation of images."""

import json
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.files import read_text, sha256_of
from vitdense.mm.checkpoints import REST
from vitdense.mm.config.query import pixel_steps
from vitdense.mm.errors import ConfigError
from vitdense.mm.predictor import Predictor
from vitdense.mm.work_folder import WorkFolder
from vitdense.runtime import SCORE, OperatingPoint


def after(model: Predictor, checkpoint: str) -> None:
    """Give a loaded model the operating point of its checkpoint."""
    inference = model.inference
    model.operating_point = read_point(checkpoint, model.model.cfg, model.names, inference.tiles, inference.overlap)
    if model.operating_point and inference.score_thr is None:
        model.score_thr = model.operating_point.thresholds
        print_log(f"operating point {model.operating_point} (score_thr= or --score-thr for another)", "current")


def file_beside(checkpoint: str) -> Path:
    return WorkFolder(Path(checkpoint).parent).operating_point


def digest_of(checkpoint: str) -> str:
    """SHA-256 of a checkpoint; for one in parts, of the file with the digests of all parts."""
    rest = Path(checkpoint, REST)
    return sha256_of(rest if rest.is_file() else checkpoint)


def conditions_of(cfg: Config, tiles: int | None, overlap: float) -> dict[str, Any]:
    """Options besides the weights that scores depend on: preparation of images, test_cfg of the heads, tiles."""
    steps = [step for step in pixel_steps(cfg) if not step["type"].startswith("Load")]
    conditions = {"steps": steps, "tiles": tiles, "overlap": overlap if tiles else None}
    conditions |= {"test_cfg": cfg.get("model", {}).get("test_cfg")}
    return json.loads(json.dumps(conditions, default=str))  # as read from a file


def read_point(
    checkpoint: str, cfg: Config, names: list[str], tiles: int | None, overlap: float
) -> OperatingPoint | None:
    """The operating point of a checkpoint; None without one, or if it is for other weights or conditions.

    Args:
        checkpoint: A file, a folder of `save_parts`, or an address.
        cfg: The config of the checkpoint.
        names: Class names.
        tiles, overlap: See `vitdense.mm.precision.Inference`.

    Raises:
        ConfigError: The file is damaged, or names other classes.
    """
    path = file_beside(checkpoint)
    if "://" in checkpoint or not path.is_file():
        return None
    try:
        content = json.loads(read_text(path))
        point = OperatingPoint.of(content, names)
        digest, conditions = content["sha256"], dict(content["conditions"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: got no operating point ({type(error).__name__}: {error}); find it again by vitdense test "
            f"--operating-point, or remove it"
        ) from error
    here = conditions_of(cfg, tiles, overlap)
    others = [
        f"{key} {conditions.get(key)}, here {value}" for key, value in here.items() if conditions.get(key) != value
    ]
    if digest != digest_of(checkpoint):
        reason = f"it is of other weights than {checkpoint}"
    elif others:
        reason = f"it was found with {'; '.join(others)}"
    else:
        return point
    print_log(f"{path} is left out: {reason}; the minimum score is {SCORE} (--score-thr)", "current")
    return None
