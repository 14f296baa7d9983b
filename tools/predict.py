"""Predict on images.

Detectors write pictures with boxes, masks and scores, and predictions.json in COCO format. Segmentors write pictures
with classes and a legend, and label maps.
"""

import sys
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.console import in_utf8
from vitdense.files import check_writable
from vitdense.mm.config.arguments import add_inference_arguments, add_prediction, make_parser
from vitdense.seams import ask, call


def main() -> None:
    parser = make_parser(__doc__, "vitdense predict")
    add_inference_arguments(parser)
    parser.add_argument(
        "images", nargs="*", help="image files, folders of images, or quoted patterns ('photos/**/*.jpg')"
    )
    parser.add_argument("--demo", action="store_true", help="in place of images: four with shapes, drawn into OUT_DIR")
    parser.add_argument("--out-dir", type=Path, help="default predictions/<name of the config>")
    parser.add_argument(
        "--score-thr",
        type=float,
        help="detectors: minimum score in pictures and in predictions.json; default: the checkpoint's operating point "
        "(see `vitdense test`), or 0.3; AP needs 0",
    )
    parser.add_argument(
        "--format",
        choices=["results", "dataset"],
        default="results",
        help="detectors: predictions.json is the list that COCO.loadRes takes (default), or a COCO data set",
    )
    parser.add_argument(
        "--as-dataset",
        type=Path,
        metavar="DIR",
        help="write a training set for `vitdense new` here, and no pictures: annotations.json, or label maps",
    )
    parser.add_argument(
        "--indices",
        action="store_true",
        help="segmentors: label maps have indices of classes from 0, not the values of the data set's own label maps",
    )
    add_prediction(parser)
    parser.apart("--as-dataset", "--out-dir", "--format", "--indices")
    call("predict", "add_options", parser)
    args = parser.parse_args()

    from vitdense.mm.cli.predict import predict
    from vitdense.mm.config.model_index import find_published, trained_of
    from vitdense.mm.console import exit_on_user_error
    from vitdense.mm.data.images import SUFFIXES
    from vitdense.mm.data.shapes import draw_dataset
    from vitdense.mm.precision import Inference
    from vitdense.mm.processes import start_processes

    # A work folder or a published model needs no checkpoint: the second argument is then an image, unless it is one.
    second = Path(args.checkpoint or "")
    is_checkpoint = second.suffix.lower() in (".pth", ".pt", ".safetensors")
    is_image = second.suffix.lower() in SUFFIXES or not (args.images or args.demo)
    if not is_checkpoint and (Path(args.config).is_dir() or is_image):
        args.images = [*filter(None, [args.checkpoint]), *args.images]
        args.checkpoint = None
    if bool(args.images) == args.demo:
        parser.error("IMAGES: expected some, or --demo alone")
    with exit_on_user_error():
        start_processes()
        inference = Inference.of(args)
        inference.tune_cpu()
        out_dir = args.as_dataset or args.out_dir or Path("predictions") / Path(args.config).stem
        if args.demo:
            check_writable(out_dir / "any.jpg", "--out-dir")
            drawn = draw_dataset(out_dir / "drawn", num_train=1, num_val=4)
            args.images = [drawn / "val"]
            if find_published(args.config):
                args.cfg_options.setdefault("data_root", str(drawn))  # for its ids of categories and images
        if (status := ask("predict", "instead", args)) is not None:
            sys.exit(status)
        options = (args.format == "dataset", args.indices, args.as_dataset is not None, args.classes)
        options = (*options, ask("predict", "writer", args, out_dir))
        print("", predict(*trained_of(args), args.images, out_dir, inference, *options), sep="\n")


if __name__ == "__main__":
    in_utf8()
    main()
