"""Predict on images.

Detectors write pictures with boxes, masks and scores, and COCO-format JSON. Segmentors write pictures with classes and
a legend, and label maps.
"""

from pathlib import Path

import torch

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.engine.config import config_of, make_parser
from vitdense.engine.launch import exit_on_user_error, find_checkpoint
from vitdense.engine.predict import predict


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("checkpoint", help="checkpoint file, or work folder (its latest checkpoint)")
    parser.add_argument("images", nargs="+", type=Path, help="image files or folders of images")
    parser.add_argument("--out-dir", type=Path, help="default <work folder>/predictions")
    parser.add_argument(
        "--score-thr", type=float, default=0.3, help="minimum score of detections in pictures (detectors only)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    with exit_on_user_error():
        cfg = config_of(args)
        out_dir = args.out_dir or Path(cfg.work_dir) / "predictions"
        checkpoint = find_checkpoint(args.checkpoint)
        print(f"\n{predict(cfg, checkpoint, args.images, out_dir, args.score_thr, args.device)}")


if __name__ == "__main__":
    main()
