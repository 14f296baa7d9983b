"""`vitdense swap`: another backbone in a config of mmdet or mmseg that you already have.

It prints the lines to change, or writes a config that inherits from yours, after the new model made a forward pass.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from vitdense.files import atomic_write
from vitdense.mm.config.arguments import Parser


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)

    from vitdense.extensions.swap.models import SIDE, changed_lines, try_model
    from vitdense.mm.config.files import find_config
    from vitdense.mm.config.load import load_config
    from vitdense.mm.config.print import check_new_file, code
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error(), TemporaryDirectory() as folder:
        path, scratch = find_config(args.config).resolve(), Path(folder, "swap.py")
        if args.out:
            check_new_file(args.out, args.force)
        with redirect_stdout(sys.stderr):  # stdout has the lines alone
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
    parser = Parser("vitdense swap", description=__doc__)
    parser.add_argument("config", metavar="CONFIG", help="of mmdet or mmseg; its own ones by mmdet::FOLDER/NAME.py")
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="of vitdense.list_models(); by default, a SwinTransformer of mmdet or mmseg keeps its sizes and weights",
    )
    parser.add_argument("--out", type=Path, metavar="NAME.py", help="write a config that inherits from CONFIG")
    parser.add_argument("--force", action="store_true", help="overwrite NAME.py")
    return parser
