"""Time a backbone against a peer's on the same input, alternating in one process: median ratio and peak memories."""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.backbones import Swin
from vitdense.report import alternate, forward_backward, median_ratio, peak_memory


def mmdet_swin(arch: str, shape: tuple[int, int]) -> nn.Module:
    """mmdet's SwinTransformer of the same size."""
    from mmdet.models.backbones import SwinTransformer

    from vitdense.backbones.variants import SWIN

    sizes = SWIN[arch]
    return SwinTransformer(embed_dims=sizes.embed_dims, depths=sizes.depths, num_heads=sizes.num_heads)


def timm_swin(arch: str, shape: tuple[int, int]) -> nn.Module:
    """timm's Swin of the same size, made to accept any image as in dense use."""
    import timm

    name = f"swin_{arch}_patch4_window7_224"
    return timm.create_model(
        name, features_only=True, img_size=shape, strict_img_size=False, always_partition=True, drop_path_rate=0.1
    )


PEERS: dict[str, Callable[[str, tuple[int, int]], nn.Module]] = {"mmdet": mmdet_swin, "timm": timm_swin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="tiny", help="size of the Swin")
    parser.add_argument("--peer", default="mmdet", choices=PEERS)
    parser.add_argument("--mode", default=["eval", "train"], nargs="+", choices=["eval", "train"])
    parser.add_argument("--shape", type=int, nargs=2, default=(800, 1344), metavar=("H", "W"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="by autocast")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one line of JSON per mode")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    models = {
        "vitdense": Swin(args.arch, drop_path_rate=0.1),
        args.peer: PEERS[args.peer](args.arch, tuple(args.shape)),
    }
    x = torch.randn(args.batch, 3, *args.shape, device=args.device)  # [B, 3, H, W]
    for mode in args.mode:
        steps = {}
        for name, model in models.items():
            model.to(args.device).train(mode == "train")
            steps[name] = partial(step, model, x, mode, getattr(torch, args.dtype))
        seconds = alternate(steps, args.rounds)
        peaks = {name: peak_memory(function, args.device) for name, function in steps.items()}
        result = {
            "mode": mode,
            "arch": args.arch,
            "shape": [args.batch, 3, *args.shape],
            "dtype": args.dtype,
            "device": torch.cuda.get_device_name() if args.device == "cuda" else f"cpu, {args.threads} threads",
            "torch": torch.__version__,
            "rounds": args.rounds,
            "median_s": {name: round(statistics.median(s), 4) for name, s in seconds.items()},
            "times_faster": round(median_ratio(seconds, "vitdense", args.peer), 3),
            "peak_mib": {name: round(peak / 2**20, 1) for name, peak in peaks.items()},
            "memory_ratio": round(peaks["vitdense"] / peaks[args.peer], 3),
        }
        if args.json:
            print(json.dumps(result))
            continue
        print(
            f"{mode}: vitdense has {result['times_faster']}x the speed and {result['memory_ratio']}x the peak memory "
            f"of {args.peer}"
        )
        for name in models:
            print(f"  {name:10} median {result['median_s'][name]:8.3f} s   peak {result['peak_mib'][name]:8.1f} MiB")


def step(model: nn.Module, x: Tensor, mode: str, dtype: torch.dtype) -> None:
    """One measured step."""
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        if mode == "train":
            forward_backward(model, x)
        else:
            with torch.no_grad():
                model(x)


if __name__ == "__main__":
    main()
