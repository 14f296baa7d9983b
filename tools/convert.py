"""Convert a checkpoint of a backbone, or of a detector with one, to another project's names, without loss."""

import argparse
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from peers import comparable, find
from verify import verify
from vitdense.engine.launch import exit_on_user_error
from vitdense.weights.convert import SUFFIXES, convert, save
from vitdense.weights.families import SCHEMES
from vitdense.weights.read import read

NAMES = list(dict.fromkeys(scheme.name for schemes in SCHEMES.values() for scheme in schemes))


def tokens(text: str) -> int:
    """A window side on the command line; 0 stands for the window itself in pretraining."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected tokens as whole numbers")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src", help="file, address or name of the model table: whatever init_cfg's checkpoint may be")
    parser.add_argument("dst", type=Path, help=f"file to write: {', '.join(SUFFIXES)}")
    parser.add_argument("--to", required=True, choices=NAMES, help="whose names it gets")
    parser.add_argument(
        "--verify",
        nargs="?",
        const="",
        metavar="MODEL",
        help="run our model and those of the other projects on a random image and compare; MODEL, a name of "
        "vitdense.list_models(), is what SRC is a checkpoint of; default: SRC, where that is such a name",
    )
    parser.add_argument("--prefix", help="of the backbone's keys in SRC; default: the usual ones are found")
    parser.add_argument("--scheme", choices=NAMES, help="whose names SRC has; default: it is detected")
    for flag, what in (("window-size", "windows"), ("pretrained-window-size", "windows of pretraining")):
        parser.add_argument(
            f"--{flag}",
            type=tokens,
            nargs="+",
            metavar="N",
            help=f"Swin V2's {what} in tokens, one or one per stage, where neither SRC nor MODEL tells them",
        )
    parser.add_argument(
        "--drop-output-norms", action="store_true", help="of a dense backbone, for classifiers have no names for them"
    )
    parser.add_argument(
        "--drop-classifier",
        action="store_true",
        help="leave out what those names have no place for of a classifier, MAE's decoder and tokens beside the map",
    )
    parser.add_argument("--sha256", help="of SRC, at least its first 8 digits")
    parser.add_argument("--allow-pickle", action="store_true", help="run the code in SRC: only if you trust it")
    args = parser.parse_args()
    if args.dst.suffix not in SUFFIXES:
        parser.error(f"dst: got {args.dst.name}, expected a name ending in one of {', '.join(SUFFIXES)}")
    if 0 in (args.window_size or ()):
        parser.error("--window-size: got 0, expected tokens above 0")
    windows, trained = args.window_size, args.pretrained_window_size
    if args.verify is not None:
        try:
            model, spec = comparable(find(args.verify or args.src))
        except ValueError as error:
            parser.error(f"{error}; name the model that SRC is a checkpoint of: --verify MODEL")
        windows, trained = windows or [spec.window], trained or spec.pretrained
    with exit_on_user_error():
        source = read(args.src, sha256=args.sha256, allow_pickle=args.allow_pickle)
        converted = convert(
            source, args.to, args.prefix, args.scheme, windows, trained, args.drop_output_norms, args.drop_classifier
        )
        print(converted)
        for result in verify(converted, model, spec) if args.verify is not None else ():
            print(result)
        # Detectors name their classes there.
        extra = {"meta": source["meta"]} if converted.is_whole and "meta" in source else None
        if extra and args.dst.suffix == ".safetensors":
            print(f"  meta, which names the classes, left out: {args.dst.name} holds tensors alone; .pth would keep it")
        save(converted.state, args.dst, "state_dict" if converted.is_whole else converted.scheme.wrapper, extra)
        print(args.dst)


if __name__ == "__main__":
    main()
