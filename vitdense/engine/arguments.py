"""Command-line arguments that all tools share, named as in mmdet and mmseg."""

import argparse
import os

from mmengine.config import Config, DictAction

from vitdense.engine.config import load_config


def make_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every run: the config, its overrides, the output folder, the launcher."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", help="config file")
    parser.add_argument("--work-dir", help="folder of the outputs; default work_dirs/<name of the config>")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=DictAction,
        default={},
        metavar="KEY=VALUE",
        help="override the config, e.g. data_root=/data/coco train_dataloader.batch_size=4 key='[a,b]'",
    )
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def config_of(args: argparse.Namespace) -> Config:
    """The config that parsed arguments ask for."""
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
