"""The option of ``vitdense train`` that shards a model."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.config.arguments import Parser

RUNNER = "vitdense.extensions.shard.runner.ShardedRunner"


def add_options(parser: "Parser") -> None:
    text = "keep parameters, gradients and optimizer states in parts over the processes (FSDP2), for large models"
    parser.add_argument("--shard", action="store_true", help=text)
    parser.apart("--shard", "--print-config")


def change(cfg: "Config", args: argparse.Namespace) -> None:
    """Train with `ShardedRunner`.

    Raises:
        ConfigError: There is one process.
    """
    from vitdense.mm.errors import ConfigError

    if cfg.get("runner_type") == RUNNER:
        del cfg.runner_type  # from the config of an earlier run
    if not getattr(args, "shard", False):
        return
    if cfg.launcher == "none":
        raise ConfigError(
            "--shard: got one process, expected several: torchrun --nproc-per-node N -m vitdense train ..."
        )
    cfg.runner_type = RUNNER
