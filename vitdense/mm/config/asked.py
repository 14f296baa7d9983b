"""What a command asks of a config, and the options of ``train`` and ``test`` that say it.

Imports neither torch nor mm: a command imports these after its arguments are parsed.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmengine.config import Config

    from vitdense.mm.precision import Inference

AMP = {  # the option --amp
    "nargs": "?",
    "const": "float16",
    "choices": ("float16", "bfloat16"),
    "help": "automatic mixed precision: float16 (default) on a GPU; bfloat16 on a GPU, or a CPU that has it",
}


def whole_number(text: str) -> int:
    """A whole number above 0 on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """A finite number above 0 on the command line."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")


def _inference() -> "Inference":
    from vitdense.mm.precision import Inference

    return Inference()


def option(command: str, default: Any = None, **how: Any) -> Any:
    """A field of `Asked` that is an option of a command; for `how` see `argparse.ArgumentParser.add_argument`."""
    return field(default=default, metadata={"command": command, "how": how})


@dataclass(frozen=True)
class Asked:
    """What a command asks of a config. Fields made by `option` are options of ``train`` and ``test``, by name."""

    options: Mapping[str, Any] = field(default_factory=dict)  # --cfg-options: dotted keys and values
    # Output folder; default: the work folder that the config lies in, the config's, or work_dirs/<name of the config>.
    work_dir: str | None = None
    launcher: str = "none"  # or pytorch, slurm, mpi
    check: Callable[["Config", Sequence[str]], None] = lambda cfg, splits: None  # before a training or a test
    checkpoint: str | None = None  # to test or to predict with: a file, an address, or an exported file
    inference: "Inference" = field(default_factory=_inference)  # how a tested model predicts
    args: argparse.Namespace | None = None  # parsed arguments of train or test, for options of extensions
    # Whether a training may replace the one in its work folder; None: it writes nothing.
    overwrite: bool | None = option(
        "train", action="store_true", help="start anew in a work folder that has checkpoints"
    )
    amp: str | None = option("train", **AMP)
    resume: str | None = option(
        "train",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="continue from this checkpoint; by default, from the latest of the work folder",
    )
    fresh: Sequence[str] = option(
        "train",
        (),
        nargs="+",
        metavar="PATTERN",
        help="regular expressions of the parameters of load_from that keep their initial values",
    )
    auto_scale_lr: bool = option(
        "train", False, action="store_true", help="scale the learning rate to the total batch size"
    )
    tta: bool = option("test", False, action="store_true", help="test-time augmentation as in the config")

    @classmethod
    def add_options(cls, command: str, parser: argparse.ArgumentParser) -> None:
        for one in fields(cls):
            if one.metadata.get("command") == command:
                parser.add_argument(f"--{one.name.replace('_', '-')}", default=one.default, **one.metadata["how"])

    @classmethod
    def keywords(cls, command: str, args: argparse.Namespace) -> dict[str, Any]:
        """Parsed arguments of a command as keywords of `Asked`, including ``args`` itself."""
        names = [one.name for one in fields(cls) if one.metadata.get("command") == command]
        return {name: getattr(args, name) for name in names} | {"args": args}

    @property
    def exported(self) -> str | None:
        """The checkpoint, if it is a file of ``vitdense export --to onnx``."""
        return self.checkpoint if str(self.checkpoint).endswith(".onnx") else None
