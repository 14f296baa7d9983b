"""``--with-preprocessing`` of ``vitdense export``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitdense.mm.cli.export import Made


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "the file takes photos, uint8 RGB, or images of bands, which it resizes and normalises"
    parser.add_argument("--with-preprocessing", action="store_true", help=text)


def check(args: argparse.Namespace, model: "Made") -> None:
    """Compare the program on photos; a ConfigError if it cannot take any."""
    if not args.with_preprocessing:
        return

    from vitdense.mm.errors import ConfigError

    wish = model.wish
    if wish.to != "onnx" or wish.maps or len(model.parts) > 1:
        got = f"--to {wish.to}{' --maps' * wish.maps}{' --joined' * (len(model.parts) > 1)}"
        raise ConfigError(f"--with-preprocessing: got {got}, expected --to onnx without --maps and --joined")
    (part,) = model.parts
    if "resize" not in part.about:
        expected = "expected a test pipeline that reads photos of 8 bits, or bands, and has one Resize at most"
        raise ConfigError(f"--with-preprocessing: got another reader or other steps that move pixels, {expected}")
    part.of_photos = True


def rewrite(args: argparse.Namespace, program: Path, model: "Made") -> None:
    """Put the preprocessing into the file."""
    if not args.with_preprocessing:
        return

    import onnx

    from vitdense.extensions.photos.preprocessing import of_photos

    onnx.save(of_photos(onnx.load(program), model.parts[0].about), program)
