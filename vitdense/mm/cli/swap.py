"""`python -m vitdense swap`: another backbone in a config of mmdet or mmseg that you already have.

It prints the lines to change, or writes a config that inherits from yours, after the new model made a forward pass.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement

from vitdense.files import atomic_write, read_text
from vitdense.mm.config.arguments import Parser
from vitdense.mm.config.backbone import model_changes
from vitdense.mm.config.build import build_model
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import load_config
from vitdense.mm.config.print import check_new_file, code
from vitdense.mm.config.query import as_list, drop_weights
from vitdense.mm.console import exit_on_user_error
from vitdense.mm.errors import ConfigError

SIDE = 256  # of the image of the forward pass, in pixels: DINO needs as many pixels in its maps as it has queries


def main(argv: Sequence[str]) -> int:
    """The command; its exit status."""
    args = _parser().parse_args(argv)
    with exit_on_user_error(), TemporaryDirectory() as folder:
        path, scratch = find_config(args.config).resolve(), Path(folder, "swap.py")
        if args.out:
            check_new_file(args.out, args.force)
        cfg = load_config(path)
        lines = changed_lines(cfg, args.backbone)
        scratch.write_text(f"_base_ = {code(path.as_posix())}\n{lines}", encoding="utf-8")
        kind = try_model(scratch, args.config)
        if args.out:
            base = Path(args.config if "::" in args.config else os.path.relpath(path, args.out.resolve().parent))
            with atomic_write(args.out) as file:
                file.write_text(f"_base_ = {code(base.as_posix())}\n\n{lines}", encoding="utf-8")
            print(f"# wrote {args.out}")
        print(f"{lines}\n# With these lines {kind} builds, and predicts on an image of {SIDE}x{SIDE} pixels.")
        optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
        if optimizer.get("type") == "SGD":
            rates = f"lr={optimizer.get('lr')}; transformers train with AdamW, such as lr=1e-4, weight_decay=0.05."
            print(f"# The optimizer stays SGD with {rates}")
    return 0


def _parser() -> Parser:
    parser = Parser("python -m vitdense swap", description=__doc__)
    parser.add_argument("config", metavar="CONFIG", help="of mmdet or mmseg; its own ones by mmdet::FOLDER/NAME.py")
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="of vitdense.list_models(); by default, a SwinTransformer of mmdet or mmseg keeps its sizes and weights",
    )
    parser.add_argument("--out", type=Path, metavar="NAME.py", help="write a config that inherits from CONFIG")
    parser.add_argument("--force", action="store_true", help="overwrite NAME.py")
    return parser


def changed_lines(cfg: Config, backbone: str | None) -> str:
    """The lines of a config that inherits from `cfg` with another backbone; see `model_changes`."""
    imports = as_list((cfg.get("custom_imports") or {}).get("imports"))
    imports = {"imports": ["vitdense", *(name for name in imports if name != "vitdense")]}
    return (
        f"custom_imports = {code({**imports, 'allow_failed_imports': False})}\n"
        f"model = {code(model_changes(cfg, backbone), prefix=8)}\n"
    )


def try_model(path: Path, name: str) -> str:
    """Build the model of a config, with random weights, and predict; the name of its class."""
    meta = {"img_shape": (SIDE, SIDE), "ori_shape": (SIDE, SIDE), "scale_factor": (1.0, 1.0)}
    try:
        cfg = load_config(path)
        drop_weights(cfg.model)  # random weights do
        model = build_model(cfg).eval()
        channels = len((cfg.model.get("data_preprocessor") or {}).get("mean") or range(3))
        image = torch.zeros(channels, SIDE, SIDE, dtype=torch.uint8)
        with torch.no_grad():
            model.test_step({"inputs": [image], "data_samples": [BaseDataElement(metainfo=meta)]})
    except Exception as error:  # models can raise anything
        reason = next(iter(str(error).strip().splitlines()), "no message")
        raise ConfigError(
            f"{name}: with the new backbone the model does not build or predict ({type(error).__name__}: {reason}); "
            f"parts that depend on the old one must be written by hand:\n{read_text(path)}"
        ) from error
    return type(model).__name__
