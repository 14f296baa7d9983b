"""The options of ``vitdense train`` that cache the maps of a frozen trunk."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.config.arguments import Parser

VIEWS = 4  # views per image by default: a linear head on CamVid loses 2.2 mIoU with one, nothing with four


def add_options(parser: "Parser") -> None:
    from vitdense.mm.config.arguments import whole_number

    add = parser.add_argument
    text = "frozen trunks: run once for every image and view, and keep the maps; default work_dirs/features"
    add("--cache-features", nargs="?", const="work_dirs/features", metavar="DIR", help=text)
    add("--views", type=whole_number, metavar="K", help=f"augmentations of an image, in turn; default {VIEWS}")
    add("--cache-dtype", choices=("float16", "float32"), default="float16", help="of the maps on disk")
    parser.apart("--cache-features", "--print-config")
    parser.need("--views", "--cache-features")
    parser.need("--cache-dtype", "--cache-features")
    parser.sets("--cache-features", "default_hooks.features")
    parser.sets("--views", "train_dataloader.sampler.views")


def change(cfg: "Config", args: argparse.Namespace) -> None:
    """Let augmentations repeat, view by view, and cache the maps of a frozen trunk.

    Raises:
        ConfigError: The data have no seed for every draw; or the model is compiled.
    """
    from mmengine.registry import DATA_SAMPLERS

    from vitdense.families import arguments
    from vitdense.mm.config.query import find_class
    from vitdense.mm.errors import ConfigError

    if getattr(args, "cache_features", None) is None:
        return
    sampler = cfg.train_dataloader.get("sampler") or {}
    kind = find_class(DATA_SAMPLERS, sampler.get("type"), cfg)
    if "views" not in ((kind and arguments(kind)) or ()):
        raise ConfigError(
            f"--cache-features: train_dataloader.sampler has the type {sampler.get('type')}, expected "
            f"vitdense.SeededEpochSampler or vitdense.SeededInfiniteSampler, whose augmentations come back"
        )
    if cfg.get("compile"):
        raise ConfigError("--cache-features: got compile too, which takes no files into its graph; leave it out")
    sampler.views = args.views or sampler.get("views") or VIEWS
    hook = dict(type="vitdense.CacheFeaturesHook", folder=args.cache_features, dtype=args.cache_dtype)
    cfg.merge_from_dict({"default_hooks.features": hook})
