"""Compare a backbone with another project's: time and peak memory, in turn on the same input, or counted costs.

The baseline is the same model, or the one named after the project. No project has an MViT for detection:
``mvitv2_tiny --peer mmdet:swin_tiny`` compares with a Swin of about the same cost.

``--mode load`` compares loading a checkpoint file with ``torch.load`` and ``load_state_dict`` of the same tensors.

``--count`` needs no GPU. It counts kernels, dtype casts, bytes, FLOPs and what autograd keeps for the backward pass.
Bytes are at 2 per floating-point element whatever the weights are. The roofline time of a device ranks models and tells
what binds: FLOPs, bytes or launches. It predicts no seconds.

``--count --sizes coco`` counts over the batches of a training on COCO with random sizes: the first pass of every batch
(cold: what depends on a new size is made in it) and a pass right after it (warm).

``--deploy`` times the forms in which both run on a CPU: eager, compiled, in onnxruntime and, where it is installed, in
OpenVINO. It takes minutes.
"""

import argparse
import sys
from pathlib import Path

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.mm.config.arguments import Parser, whole_number

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
if not SCRIPTS.is_dir():
    sys.exit(f"error: the models of other projects are built by {SCRIPTS}, which a clone of vitdense has; run it there")
sys.path.append(str(SCRIPTS))


def main() -> None:
    parser = Parser("vitdense benchmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model",
        nargs="?",
        default="swin_tiny",
        help="name of vitdense.list_models(), or vitdet_base with --peer PROJECT:MODEL",
    )
    parser.add_argument(
        "--peer",
        default=[""],
        nargs="+",
        metavar="PROJECT[:MODEL]",
        help="baseline, such as mmdet, timm, torchvision; by default the first of its family; several to count",
    )
    parser.add_argument("--shape", type=whole_number, nargs=2, default=(800, 1344), metavar=("H", "W"))
    parser.add_argument("--batch", type=whole_number, default=1)
    parser.add_argument("--json", action="store_true", help="one line of JSON per mode, or per counted pass")
    use = parser.add_mutually_exclusive_group()
    use.add_argument("--mode", default=["eval", "train"], nargs="+", choices=["eval", "train", "load"], help="to time")
    use.add_argument(
        "--count",
        action="store_true",
        help="count instead, on the meta device: with weights cast to float32 and to bfloat16, for the meta device has "
        "no autocast",
    )
    use.add_argument("--deploy", action="store_true", help="time the forms of inference on a CPU")
    timing = parser.add_argument_group("timing")
    timing.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="by autocast")
    timing.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    timing.add_argument("--threads", type=whole_number, default=2, help="CPU threads")
    timing.add_argument("--rounds", type=whole_number, default=9)
    counting = parser.add_argument_group("with --count")
    counting.add_argument("--device-model", default="h200", metavar="GPU", help="of the roofline: h200, h100, a100 ...")
    counting.add_argument("--top", type=int, default=0, metavar="N", help="also the N kernels with the most bytes")
    draw = parser.add_argument_group("with --count --sizes")
    draw.add_argument("--sizes", choices=["coco"], help="batches of configs/cascade_swin_t_coco.py, of random sizes")
    draw.add_argument("--steps", type=whole_number, default=400, help="batches")
    draw.add_argument("--seed", type=int, default=0, help="of their sizes")
    for option, other in (("--sizes", "--count"), ("--steps", "--sizes"), ("--seed", "--sizes")):
        parser.need(option, other)
    for option in ("--device-model", "--top"):
        parser.need(option, "--count")
    parser.apart("--sizes", "--shape", "--batch", "--device-model", "--top")
    parser.apart("--count", "--dtype", "--device", "--threads", "--rounds")
    parser.apart("--deploy", "--dtype", "--device")
    args = parser.parse_args()
    if len(args.peer) > 1 and not args.count:
        parser.error(f"--peer: got {' '.join(args.peer)}, expected one for timing")

    from measuring import measure, models_of
    from vitdense.mm.console import exit_on_user_error

    with exit_on_user_error():
        try:
            models = models_of(args)
        except ValueError as error:
            parser.error(str(error))
        measure(args, models)


if __name__ == "__main__":
    main()
