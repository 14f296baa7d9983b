"""Training, validation and test are there whole or not at all; keys of their data loaders, which torch would refuse in
a stack trace."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.options import DATALOADER
from vitdense.mm.errors import ConfigError

PARTS = {
    "train": ("train_cfg", "train_dataloader", "optim_wrapper"),
    **{split: (f"{split}_cfg", f"{split}_dataloader", f"{split}_evaluator") for split in ("val", "test")},
}


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    for parts in PARTS.values():  # mmengine's runner refuses it in every command
        if (absent := [part for part in parts if cfg.get(part) is None]) and len(absent) < len(parts):
            given = [part for part in parts if part not in absent]
            yield ConfigError(
                f"{', '.join(absent)}: got None, but {', '.join(given)} is there; give all of {', '.join(parts)}, or "
                f"none: --cfg-options {' '.join(f'{part}=None' for part in given)}"
            )
    for split in splits:
        if unknown := (cfg.get(f"{split}_dataloader") or {}).keys() - DATALOADER:
            yield ConfigError(
                f"{split}_dataloader: got {', '.join(sorted(unknown))}, expected arguments of torch's DataLoader, "
                f"`dataset` and `num_batch_per_epoch`"
            )
