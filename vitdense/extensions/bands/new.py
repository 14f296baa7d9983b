"""`vitdense new` on images of bands: what the config says about them."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitdense.extensions.bands.shown import add_bands

if TYPE_CHECKING:
    from mmengine.config import Config

MEASURED = 50  # training images, evenly spaced, for mean and std


def add_options(parser: argparse.ArgumentParser) -> None:
    add_bands(parser)
    parser.add_argument("--alpha", choices=("drop", "keep"), help="of the last band, where it may be alpha")


def images(args: argparse.Namespace, cfg: "Config", trunk: Mapping[str, Any], paths: Sequence[str]) -> tuple | None:
    """For training images with bands or bits that mm's reader loses what `vitdense.seams.options_of` says; else None.

    Raises:
        OptionError: An option is missing or does not fit, or a file that is measured cannot be used.
    """
    from vitdense.extensions.bands.images import FOR_RGB, about
    from vitdense.extensions.bands.step import LoadBands
    from vitdense.mm.config.query import nodes, type_name
    from vitdense.mm.errors import ConfigError

    found = about(paths[0]) if paths else None
    if found is None:
        if args.bands or args.alpha:
            raise ConfigError("--bands, --alpha: got images of 8 bits and 1 or 3 bands; leave them out")
        return None
    if args.alpha is None and (found.bands == 4 or found.has_alpha):
        what = f"{paths[0]} has {found.bands} bands, the last of which may be alpha"
        raise ConfigError(f"{what}; give --alpha drop, or --alpha keep")
    options = {"bands": found.bands}
    options |= {"drop_alpha": args.alpha == "drop"} if args.alpha else {}
    options |= {"shown": tuple(args.bands)} if args.bands else {}
    step = LoadBands(**options)
    mean, std = _measure(step, paths)
    print(f"{found.bands} bands of {found.dtype}; mean {mean}, std {std}")
    where = "model.backbone.trunk" if "trunk" in trunk else "model.backbone"
    changes = {f"model.data_preprocessor.{key}": x for key, x in (("mean", mean), ("std", std), ("bgr_to_rgb", False))}
    changes[f"{where}.in_channels"] = step.channels
    if "checkpoint" in (trunk.get("trunk", trunk).get("init_cfg") or ()):
        changes[f"{where}.init_cfg.channels"] = [0, 1, 2] if step.channels == 3 else "mean"
    kind = "Seg" if cfg.get("default_scope") == "mmseg" else "Det"
    changes["model.data_preprocessor.type"] = f"vitdense.{kind}BandsPreprocessor"
    left_out = {type_name(one) for one in nodes(cfg.train_dataloader.dataset)} & FOR_RGB
    if left_out:
        print(f"left out, for RGB of 8 bits: {', '.join(left_out)}")
    return {"type": "vitdense.LoadBands", **options}, changes, sorted(left_out)


def _measure(step: Any, paths: Sequence[str]) -> tuple[list[float], list[float]]:
    """Mean and std of every band over all pixels of files; the std of a constant band is 1."""
    import numpy as np

    from vitdense.mm.data.images import evenly_spaced

    moments = []
    for path in evenly_spaced(paths, MEASURED):
        pixels = step.load(path).reshape(-1, step.channels).astype(np.float64)
        moments.append((len(pixels), pixels.mean(0), pixels.var(0)))
    number, means, variances = map(np.array, zip(*moments))  # [images], [images, bands] twice
    mean = np.average(means, 0, number)
    std = np.sqrt(np.average(variances + (means - mean) ** 2, 0, number))
    std[std <= 1e-6 * np.abs(mean)] = 1.0
    return [float(f"{x:.6g}") for x in mean], [float(f"{x:.6g}") for x in std]
