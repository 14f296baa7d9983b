"""Convert a checkpoint of a backbone or detector to the names of another project, without loss."""

import argparse
import sys
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.errors import OptionError, check_choice
from vitdense.families import row_of
from vitdense.files import check_writable

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"  # what --verify compares with
# Naming schemes of one project alone, and the licence of its files if it binds what is derived from them.
LICENCES = {"dinov3": "DINOv3-License"}


def licence_of(src: str, scheme: str) -> str | None:
    """The licence of weights by name or address, or by the naming scheme of their file; None if unknown."""
    row = row_of(src)
    return row.licence if row else LICENCES.get(scheme)


def tokens(text: str) -> int:
    """A window side on the command line; in pretraining, 0 means the window of the model."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected tokens as whole numbers")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser("vitdense convert", description=__doc__)
    parser.add_argument("src", help="file, work folder, URL, or name of the model table")
    parser.add_argument("dst", type=Path, help="file to write: NAME.safetensors, .pth, .pt or .bin")
    parser.add_argument(
        "--to",
        required=True,
        metavar="SCHEME",
        help="naming scheme of the result, such as timm, official, mmdet or vitdense; an unknown name lists them",
    )
    parser.add_argument(
        "--verify",
        nargs="?",
        const="",
        metavar="MODEL",
        help="compare our model with those of other projects on a random image; MODEL: the model of SRC, a name of "
        "vitdense.list_models(); default: SRC, if that is such a name",
    )
    parser.add_argument(
        "--image",
        type=Path,
        help="with --verify: 000000039769.jpg of COCO val2017, to compare DINOv3's published features",
    )
    parser.add_argument("--prefix", help="prefix of the backbone in SRC; detected by default")
    parser.add_argument("--family", metavar="FAMILY", help="family of the backbone in SRC; detected by default")
    parser.add_argument("--scheme", metavar="SCHEME", help="naming scheme of SRC; detected by default")
    for flag, what in (("window-size", "windows"), ("pretrained-window-size", "windows of pretraining")):
        parser.add_argument(
            f"--{flag}",
            type=tokens,
            nargs="+",
            metavar="N",
            help=f"Swin V2's {what} in tokens, one or one per stage, if neither SRC nor MODEL has them",
        )
    parser.add_argument(
        "--drop-output-norms",
        action="store_true",
        help="leave out output norms of a dense backbone; classifiers have none",
    )
    parser.add_argument(
        "--drop-classifier",
        action="store_true",
        help="leave out tensors without a name in the new scheme: of a classifier, MAE's decoder, further tokens",
    )
    parser.add_argument(
        "--merge-lora", action="store_true", help="add the low-rank updates of finetune='lora' to the weights"
    )
    parser.add_argument("--sha256", help="SHA-256 of SRC, at least its first 8 digits")
    parser.add_argument("--allow-pickle", action="store_true", help="run the code in SRC: only if you trust it")
    args = parser.parse_args()

    from vitdense.checkpoint.convert import SUFFIXES, convert, save
    from vitdense.checkpoint.read import read
    from vitdense.checkpoint.schemes import NAMING
    from vitdense.mm.checkpoints import read_checkpoint
    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.work_folder import find_checkpoint

    if args.dst.suffix not in SUFFIXES:
        parser.error(f"dst: got {args.dst.name}, expected a name ending in one of {', '.join(SUFFIXES)}")
    if 0 in (args.window_size or ()):
        parser.error("--window-size: got 0, expected tokens above 0")
    windows, trained = args.window_size, args.pretrained_window_size
    if args.image is not None and not args.verify:
        parser.error("--image: give the model of SRC as well: --verify MODEL")
    if args.verify is not None:
        if not SCRIPTS.is_dir():
            parser.error(
                f"--verify: the models of other projects are built by {SCRIPTS}, which a clone of vitdense has"
            )
        sys.path.append(str(SCRIPTS))
        from fingerprints import check
        from peers import comparable, find
        from verify import verify

        try:
            model, spec = comparable(find(args.verify or args.src))
        except ValueError as error:
            parser.error(f"{error}; name the model that SRC is a checkpoint of: --verify MODEL")
        windows, trained = windows or [spec.window], trained or spec.pretrained
    with exit_on_user_error():
        check_writable(args.dst, "DST")
        if args.family:
            check_choice("--family", args.family, NAMING)
        file = find_checkpoint(args.src)
        if Path(file).is_dir():
            if args.sha256:
                raise OptionError(
                    f"--sha256: got {file}, a checkpoint in parts, which has a digest of each; leave it out"
                )
            source = read_checkpoint(file, "cpu", args.allow_pickle)
        else:
            source = read(file, sha256=args.sha256, allow_pickle=args.allow_pickle)
        converted = convert(
            source,
            args.to,
            args.prefix,
            args.scheme,
            windows,
            trained,
            args.drop_output_norms,
            args.drop_classifier,
            args.merge_lora,
            args.family,
        )
        print(converted)
        if licence := licence_of(args.src, converted.match.scheme.name):
            print(f"  licence of the weights, which binds the converted file: {licence}")
        for result in verify(converted, model, spec) if args.verify is not None else ():
            print(result)
        if args.image is not None:
            print(check(args.verify, args.src, args.image))
        # `meta` has the class names of a detector.
        extra = {"meta": source["meta"]} if converted.is_whole and "meta" in source else None
        if extra and args.dst.suffix == ".safetensors":
            print(f"  meta (class names) left out: {args.dst.name} can store tensors only; .pth would keep it")
        save(converted.state, args.dst, "state_dict" if converted.is_whole else converted.scheme.wrapper, extra)
        print(args.dst)


if __name__ == "__main__":
    in_utf8()
    main()
