"""Keys of the data loaders, which torch would refuse in a stack trace."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.options import DATALOADER
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for split in splits:
        if unknown := (cfg.get(f"{split}_dataloader") or {}).keys() - DATALOADER:
            yield ConfigError(
                f"{split}_dataloader: got {', '.join(sorted(unknown))}, expected arguments of torch's DataLoader, "
                f"`dataset` and `num_batch_per_epoch`"
            )
