"""Published detectors and segmentors by name, from the indices ``metafile.yml`` of mmdet, mmseg and vitdense."""

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mmengine.config import Config
from mmengine.logging import print_log

from vitdense.files import read_text
from vitdense.mm.config.files import CONFIGS
from vitdense.mm.config.load import load_config, options_of
from vitdense.mm.config.query import as_list
from vitdense.mm.errors import ConfigError, join_some
from vitdense.mm.work_folder import find_checkpoint

INDEX = CONFIGS / "metafile.yml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
LICENCE = "Apache-2.0"  # of mmdet and mmseg
DATA = "_(coco(_panoptic)?|ade20k)"  # at the end of a name


class Published(NamedTuple):
    name: str
    config: str  # for `load_config`
    address: str  # of the checkpoint, or its file in the package
    licence: str  # of the publishing project
    figures: Mapping[str, float]  # published metrics, such as ``{"box AP": 46.0}``


def find_published(name: str) -> Published | None:
    """The published model of a name, or None.

    The name may leave out the data set (``_coco``, ``_coco_panoptic``, ``_ade20k``) if it stays unique: ``rfdetr_s``.
    Else it is a ConfigError, as is a file that is neither in the package nor at an ``https://`` address.
    """
    rows = [*_read(name)]
    found = [row for row in rows if row.name == name][:1]  # some are in the indices twice
    found = found or [row for row in rows if re.fullmatch(re.escape(name) + DATA, row.name)]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(f"{name}: expected one published model, got {join_some(row.name for row in found)}")
    if not found[0].address.startswith("https://") and not Path(found[0].address).is_file():
        raise ConfigError(f"{name}: its file is at {found[0].address}, expected an address https://")
    return found[0]


def is_published(address: str) -> bool:
    return any(row.address == address for row in _read(address.rpartition("/")[2]))


def load_trained(config: str, checkpoint: str | None, **options: Any) -> tuple[Config, str]:
    """The config of a trained model, and what `find_checkpoint` takes.

    Args:
        config: A config; a work folder; or the name of a published model.
        checkpoint: A file, address or work folder; None for the one of the work folder or of the published model.
        options: See `load_config`.
    """
    is_alone = checkpoint is None and not Path(config).is_dir()
    row = find_published(config) if is_alone else None
    near = difflib.get_close_matches(config, list_published()) if is_alone and row is None else []
    if not near:  # it says what else the name of no config may mean
        cfg = load_config(row.config if row else config, **options)
    if is_alone and row is None:
        names = f"; names like it: {', '.join(near)}" if near else ""
        raise ConfigError(f"got {config} alone, no published model; expected a checkpoint or a work folder too{names}")
    if row:
        print_log(f"{row.name}: {row.address}, licence {row.licence}, published {dict(row.figures)}", logger="current")
    return cfg, row.address if row else checkpoint or config


def trained_of(args: argparse.Namespace, measured: bool = False) -> tuple[Config, str]:
    """The config and the checkpoint of the parsed arguments of a tool; see `find_checkpoint`."""
    cfg, checkpoint = load_trained(args.config, args.checkpoint, **options_of(args))
    return cfg, find_checkpoint(checkpoint, measured)


def list_published() -> list[str]:
    return [row.name for row in _read("Weights")]


def _read(text: str) -> Iterator[Published]:
    files = [("vitdense", file) for file in (INDEX, *sorted(CONFIGS.glob("extensions/*/metafile.yml")))]
    for package, spec in ((package, find_spec(package)) for package in ("mmdet", "mmseg")):
        found = sorted(Path(spec.origin).parent.glob(".mim/configs/*/metafile.y*ml")) if spec else ()
        files += [(package, file) for file in found]
    for package, file in files:
        content = read_text(file)
        index = yaml.load(content, LOADER) if text in content else ()
        for model in index["Models"] if isinstance(index, dict) else index:  # some are lists
            if "Weights" in model:
                config, licence, address = model["Name"], LICENCE, model["Weights"]
                if package == "vitdense":
                    licence = model["Paper"]["License"]
                    address = address if "://" in address else str(CONFIGS / address)
                else:
                    config = f"{package}::{model['Config'].removeprefix('configs/')}"
                results = (result.get("Metrics") or {} for result in as_list(model.get("Results")))
                figures = {key: value for metrics in results for key, value in metrics.items()}
                yield Published(model["Name"], config, address, licence, figures)
