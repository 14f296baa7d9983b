"""Command-line arguments that all tools share, named as in mmdet and mmseg."""

import argparse
import os

from mmengine.config import Config, DictAction

from vitdense.engine.config import load_config


def make_parser(description: str) -> argparse.ArgumentParser:
    """A parser with what every tool takes: the config and its overrides."""
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
    """Add what a training or test run takes: the output folder and the launcher of its processes."""
    parser.add_argument("--work-dir", help="folder of the outputs; default work_dirs/<name of the config>")
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm", "mpi"], default="none")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)


def config_of(args: argparse.Namespace) -> Config:
    """The config that parsed arguments ask for."""
    if "launcher" not in args:
        return load_config(args.config, args.cfg_options)
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return load_config(args.config, args.cfg_options, args.work_dir, args.launcher)
