"""Padding: images are of whole patches of a plain ViT."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.backbone import row_of_weights, trunk_of
from vitdense.mm.config.query import as_list


def find(cfg: Config, splits: Sequence[str] = ()) -> Iterator[Finding]:
    """Where images are not padded to whole patches of a plain ViT, a line.

    The ViT then pads its own input: maps reach past the image, and predictions are slightly misaligned.
    """
    model, trunk = cfg.model.get("module", cfg.model), trunk_of(cfg)
    row = row_of_weights(trunk)
    if row is None or row.patch_size is None:
        return
    patch = trunk.get("patch_size") or row.patch_size
    preprocessor, test_cfg = model.get("data_preprocessor") or {}, model.get("test_cfg") or {}
    if cfg.get("default_scope") != "mmseg":
        where, sides = "data_preprocessor.pad_size_divisor", [preprocessor.get("pad_size_divisor", 1)]
    elif test_cfg.get("mode") == "slide":
        where, sides = "test_cfg.crop_size", as_list(test_cfg.get("crop_size"))
    else:
        padding = preprocessor.get("test_cfg") or {}
        where, sides = "data_preprocessor.test_cfg.size_divisor", [padding.get("size_divisor") or 1]
    if any(side % patch for side in sides):
        yield (
            f"model.{where}: got {', '.join(map(str, sides))}, expected a multiple of {patch}, the side of the patches "
            f"of {row.name} in pixels; otherwise predictions are slightly misaligned"
        )
