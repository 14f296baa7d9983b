"""Batch size: at least one image; heads that pool a whole map to one value per channel need two for their norms."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config
from mmengine.device import get_device

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.query import nodes
from vitdense.mm.errors import ConfigError

POOLING = ("UPerHead", "PSPHead", "ASPPHead", "DepthwiseSeparableASPPHead", "EncHead")


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module. On several GPUs the statistics are of all their images."""
    for split in splits:
        size = (cfg.get(f"{split}_dataloader") or {}).get("batch_size", 1)
        if not isinstance(size, int) or size < 1:
            yield ConfigError(f"{split}_dataloader.batch_size: got {size!r}, expected a number of images, 1 or more")
    alone = cfg.get("launcher", "none") == "none" or get_device() == "cpu"
    alone = alone and (cfg.get("train_dataloader") or {}).get("batch_size") == 1
    if "train" not in splits or not alone:
        return
    for head in nodes(cfg.model):
        kind, norm = str(head.get("type")).rpartition(".")[2], str((head.get("norm_cfg") or {}).get("type"))
        if kind in POOLING and "BN" in norm:
            yield ConfigError(
                f"train_dataloader.batch_size: got 1, but {kind} pools a map to one value per channel, and the "
                f"statistics of its {norm} need two; set --batch-size 2, or another norm"
            )
