"""Configs from a file and the command line; building their models."""

import argparse
import difflib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn

import vitdense.mm.registry
from vitdense.mm.config.classes import follow_classes
from vitdense.mm.config.code import ReadableConfig
from vitdense.mm.config.options import merge_options
from vitdense.mm.config.walk import nodes
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import keep_places
from vitdense.mm.train.processes import find_launcher

CONFIGS = (Path(vitdense.__file__).parent / ".mim/configs/configs").resolve()  # the recipes


def load_config(
    path: str | Path, options: Mapping[str, Any] | None = None, work_dir: str | None = None, launcher: str = "none"
) -> Config:
    """Read a config, override options, apply its settings, and complete it by the classes of its data.

    See `merge_options` and `follow_classes`. A new ``data_root`` replaces the old one in every path
    of the config. mmengine would change the variable ``data_root`` only, after all paths have been made from it.

    Args:
        path: See `find_config`.
        options: ``--cfg-options``: dotted keys and values.
        work_dir: Output folder; default: the config's, or ``work_dirs/<name of the config>``.
        launcher: ``none``, ``pytorch``, ``slurm`` or ``mpi``.

    Raises:
        ConfigError: There is no such file; it merges a dict into a list; or see the functions above.
    """
    path = find_config(path)
    cfg = _read(path)
    old_root = cfg.get("data_root")
    merge_options(cfg, options or {})
    new_root = cfg.get("data_root")
    if new_root != old_root:
        moved = _replace_root(cfg._cfg_dict, str(old_root).rstrip("/"), os.path.expanduser(new_root).rstrip("/"))
        if moved == cfg._cfg_dict:
            raise ConfigError(
                f"--cfg-options data_root: no path of {path} begins with the data_root {old_root!r}; set the paths "
                f"themselves, such as train_dataloader.dataset.data_root"
            )
        cfg = ReadableConfig(moved, filename=cfg.filename)
    follow_classes(cfg)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get("work_dir") or str(Path("work_dirs") / path.stem)
    return cfg


def shipped(name: str) -> Config:
    """A config that mmdet, mmseg or vitdense ships, as its file has it; see `find_config`."""
    return _read(find_config(name))


def find_config(name: str | Path) -> Path:
    """The path of a config.

    It is a file; a work folder, for the config of its training; ``mmdet::FOLDER/NAME.py`` for one that an installed
    package ships; or the name of one of ours alone, such as ``cascade_swin_t_coco``.

    mmengine's own reader of such names looks for packages by the name of the distribution, which differs for mmseg.

    Raises:
        ConfigError: There is no such file.
    """
    package, _, inside = str(name).rpartition("::")
    spec = find_spec(package) if package else None
    path = Path(spec.origin).parent / ".mim/configs" / inside if spec else Path(name)
    if not spec and not path.suffix and path.name == str(path) and not path.exists():
        path = next(CONFIGS.rglob(f"{path}.py"), path)
    if path.is_dir():
        found = sorted(path.glob("*.py"))
        if len(found) != 1:
            raise ConfigError(
                f"config {path}: got a folder with {len(found)} configs, expected a work folder, with one"
            )
        return found[0]
    if not path.is_file():
        near = difflib.get_close_matches(path.stem, [recipe.stem for recipe in CONFIGS.rglob("*.py")], n=1)
        hint = f"did you mean {near[0]}?" if near else "expected one, or a name such as mmdet::FOLDER/NAME.py"
        raise ConfigError(f"config {path} is not a file; {hint}")
    return path


def _read(path: Path) -> Config:
    if path.suffix != ".py":  # mmengine's reader of YAML runs code from it
        raise ConfigError(f"config {path}: got {path.suffix or 'no suffix'}, expected .py; write its entries as Python")
    try:
        cfg = Config.fromfile(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: a base config is missing ({error}); _base_ is relative to the file") from error
    except TypeError as error:  # mmengine's advice, `_delete_=True`, would drop all entries of the list but this
        if "cannot inherit from base" not in str(error) or "<class 'list'>" not in str(error):
            raise
        key = str(error).partition("=")[0]
        raise ConfigError(
            f"{path}: {key} is a list in the base config, got a dict; change every entry: {key}=[dict(entry, ...) for "
            f"entry in _base_....{key}]. The number of classes needs no such line: it follows the data where no head "
            f"states it"
        ) from error
    for node in nodes(cfg._cfg_dict):
        # mmengine has the scope of the package for all that a base `vitdense::...` builds. Our configs name the classes
        # of their default_scope, as mmengine builds them from a base of any other path.
        if node.get("_scope_") == "vitdense":
            del node["_scope_"]
    return ReadableConfig(cfg._cfg_dict, filename=cfg.filename)


def _replace_root(node: Any, old: str, new: str) -> Any:
    """`node` with the folder `old` replaced by `new` in every path."""
    if isinstance(node, dict):
        return ConfigDict({key: _replace_root(value, old, new) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_replace_root(value, old, new) for value in node)
    if isinstance(node, str) and (node == old or node.startswith(old + "/")):
        return new + node[len(old) :]
    return node


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config for one process: weights not initialised, BN for SyncBN; see `keep_places`."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    keep_places(model)
    return model


def hook_configs(cfg: Config) -> list[dict]:
    """The configs of all hooks."""
    found = [*(cfg.get("default_hooks") or {}).values(), *(cfg.get("custom_hooks") or [])]
    return [hook for hook in found if hook]


def make_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all tools, named as in mmdet and mmseg: the config and its overrides."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", help="config file")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=DictAction,
        default={},
        metavar="KEY=VALUE",
        help="override the config, e.g. data_root=/data/coco train_dataloader.batch_size=4 key='[a,b]'",
    )
    return parser


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of training and test: the output folder and the launcher."""
    parser.add_argument("--work-dir", help="output folder; default work_dirs/<name of the config>")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
    # `python -m torch.distributed.launch` passes it; mmengine reads the environment variable.
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint, which a work folder or a published model in the place of the config makes unnecessary."""
    parser.add_argument(
        "checkpoint",
        nargs="?",
        help="checkpoint file, or work folder (its latest checkpoint); none after a work folder, or the name of a "
        "published model, as CONFIG",
    )


def add_inference_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of tools that run a trained model on images: the checkpoint and the device."""
    add_checkpoint(parser)
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda or cuda:N; default: cuda where there is one",
    )


def add_tiles(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of detection in tiles."""
    parser.add_argument(
        "--tiles",
        type=int,
        metavar="SIDE",
        help="detectors: predict in tiles of this side in pixels of the image, and merge",
    )
    parser.add_argument("--overlap", type=float, default=0.2, help="of tiles, as a share of their side; default 0.2")


def check_tiles(cfg: Config) -> None:
    """Raise if the model of a config cannot predict in tiles."""
    if cfg.get("default_scope") == "mmseg":
        raise ConfigError(
            "tiles: got a segmentor, expected a detector; a segmentor slides over an image by its config: "
            "model.test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341))"
        )


def config_of(args: argparse.Namespace) -> Config:
    """Load the config of parsed arguments."""
    if "launcher" not in args:
        return load_config(args.config, args.cfg_options)
    return load_config(args.config, args.cfg_options, args.work_dir, find_launcher(args.launcher))
