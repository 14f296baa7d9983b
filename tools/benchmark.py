"""Time a backbone against a peer's on the same input, alternating in one process: median ratio and peak memories.

``--mode load`` compares loading a checkpoint file with a bare ``torch.load`` and ``load_state_dict`` of its tensors.

MViT is compared in two ways. Against mmdet ours has hybrid windows, as for detection, and its rival is mmdet's Swin of
the same size: another model, of about the same cost. Against timm and mmpretrain, whose MViTs attend globally and take
square images of the size they are built for, ours is built and attends likewise: the same model.

ViT's maps are those of the last blocks of all quarters, before any norm, of the same model in timm, mmpretrain or
mmseg. Theirs is built for the shape, ours for 224x224 pixels as in dense work: it resizes its positions.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import vitdense  # noqa: F401  first: it makes mmcv importable without a compiler
from vitdense.backbones import MViT, Swin, SwinV2, ViT
from vitdense.backbones.variants import MVIT, SWIN, SWIN_V2, VIT
from vitdense.peers import PEERS, Like, Peer
from vitdense.report import alternate, forward_backward, median_ratio, peak_memory
from vitdense.weights.convert import convert
from vitdense.weights.load import load_pretrained

DROP_PATH = 0.1  # of both


class Family(NamedTuple):
    """How a family is timed: its class, its sizes and the default one, its window in tokens, its default peer, and
    whose names a file of its dense backbone has for ``--mode load``."""

    make: type[nn.Module]
    sizes: dict
    arch: str
    window: int
    peer: str
    file_names: str


FAMILIES = {
    "swin": Family(Swin, SWIN, "tiny", 7, "mmdet", "official"),
    "swin_v2": Family(SwinV2, SWIN_V2, "tiny", 8, "timm", "official"),
    "mvit": Family(MViT, MVIT, "v2_tiny", 0, "mmdet", "detectron2"),
    "vit": Family(ViT, VIT, "deit_small", 0, "timm", "official"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="swin", choices=FAMILIES)
    parser.add_argument("--arch", help="size of the backbone; default the smallest, deit_small for ViT")
    parser.add_argument("--window", type=int, help="Swin's, in tokens; default 7 for Swin, 8 for Swin V2")
    parser.add_argument(
        "--peer", help=f"default timm for Swin V2 and ViT, else mmdet; {', '.join(PEERS['swin'])}, mmseg"
    )
    parser.add_argument("--mode", default=["eval", "train"], nargs="+", choices=["eval", "train", "load"])
    parser.add_argument("--shape", type=int, nargs=2, default=(800, 1344), metavar=("H", "W"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="by autocast")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one line of JSON per mode")
    args = parser.parse_args()
    family = FAMILIES[args.family]
    args.arch, name = args.arch or family.arch, args.peer or family.peer
    if args.arch not in family.sizes:
        parser.error(f"--arch: got {args.arch}, expected one of {', '.join(family.sizes)} for {args.family}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    try:
        ours, peer, like = pair(family, args, name)
    except ValueError as error:
        parser.error(str(error))
    for mode in args.mode:
        if mode == "load":
            report(args, mode, "torch", loading(ours, family.file_names, args.window or family.window))
        else:
            report(args, mode, name, running(args, mode, name, ours, peer.build(like), peer))


def pair(family: Family, args: argparse.Namespace, name: str) -> tuple[nn.Module, Peer, Like]:
    """Our model, its peer, and what the peer is to be built like.

    Raises:
        ValueError: There is no such peer, or none of this size or for this shape.
    """
    peers, shape = PEERS[args.family], tuple(args.shape)
    known = [*peers, "mmdet"] if args.family == "mvit" else list(peers)
    if name not in known:
        raise ValueError(f"--peer: got {name}, expected one of {', '.join(known)} for {args.family}")
    if args.window and not family.window:
        raise ValueError(f"--window: it is Swin's, {args.family} has none to set; leave it out")
    if args.family == "vit":
        like = Like(family.sizes[args.arch], shape, drop_path_rate=DROP_PATH)
        patch = like.arch.patch_size
        if shape[0] % patch or shape[1] % patch:
            raise ValueError(f"--shape: got {shape[0]}x{shape[1]}, expected multiples of a patch, {patch}, for {name}")
        if lacks := peers[name].lacks(like):
            raise ValueError(f"--peer, --arch: {name} has no model with {lacks}, as {args.arch}; take --peer timm")
        return ViT(args.arch, out_norm="none", drop_path_rate=DROP_PATH), peers[name], like
    if args.family != "mvit":
        window = args.window or family.window
        ours = family.make(args.arch, window_size=window, drop_path_rate=DROP_PATH)
        return ours, peers[name], Like(family.sizes[args.arch], shape, window, drop_path_rate=DROP_PATH)
    if name == "mmdet":
        size = args.arch.removeprefix("v2_")
        if size not in SWIN:
            rivals = ", ".join(f"v2_{size}" for size in SWIN)
            raise ValueError(f"--arch: got {args.arch}, expected one of {rivals}, for which mmdet has a Swin")
        like = Like(SWIN[size], shape, FAMILIES["swin"].window, drop_path_rate=DROP_PATH)
        return MViT(args.arch, drop_path_rate=DROP_PATH), PEERS["swin"]["mmdet"], like
    arch = MVIT[args.arch]
    if shape[0] != shape[1] or shape[0] % 32 or arch.pool != "conv":
        raise ValueError(
            f"--shape, --arch: got {shape[0]}x{shape[1]} and {args.arch}, expected a square of a multiple of 32 pixels "
            f"and an MViTv2 for {name}, which has no other; --peer mmdet takes any shape"
        )
    ours = MViT(args.arch, window="global", pretrain_img_size=shape, drop_path_rate=DROP_PATH)
    return ours, peers[name], Like(arch, shape, drop_path_rate=DROP_PATH)


def running(
    args: argparse.Namespace, mode: str, name: str, ours: nn.Module, theirs: nn.Module, peer: Peer
) -> dict[str, Callable[[], None]]:
    """A step of each model on the same image."""
    x = torch.randn(args.batch, 3, *args.shape, device=args.device)  # [B, 3, H, W]
    steps = {}
    for key, model, run in (("vitdense", ours, ours), (name, theirs, partial(peer.run, theirs))):
        model.to(args.device).train(mode == "train")
        steps[key] = partial(step, model, run, x, mode, getattr(torch, args.dtype))
    return steps


def loading(ours: nn.Module, names: str, window: int) -> dict[str, Callable[[], None]]:
    """Our loader on a file under the authors' names, and torch's on one of the same tensors under the model's."""
    folder = tempfile.TemporaryDirectory()
    file, bare = Path(folder.name, "theirs.pth"), Path(folder.name, "bare.pth")
    state = ours.state_dict()
    torch.save({"model": convert(state, names, windows=[window] if window else None).state}, file)
    torch.save(state, bare)

    def load() -> None:
        load_pretrained(ours, file)

    def load_bare() -> None:
        assert folder  # keeps it until the last call
        ours.load_state_dict(torch.load(bare, map_location="cpu", weights_only=True))

    return {"vitdense": load, "torch": load_bare}


def report(args: argparse.Namespace, mode: str, peer: str, functions: dict[str, Callable[[], None]]) -> None:
    """Measure and print."""
    seconds = alternate(functions, args.rounds)
    peaks = {name: peak_memory(function, args.device) for name, function in functions.items()}
    result = {
        "mode": mode,
        "model": f"{args.family} {args.arch}",
        "shape": [args.batch, 3, *args.shape],
        "dtype": args.dtype,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else f"cpu, {args.threads} threads",
        "torch": torch.__version__,
        "rounds": args.rounds,
        "median_s": {name: round(statistics.median(s), 4) for name, s in seconds.items()},
        "times_faster": round(median_ratio(seconds, "vitdense", peer), 3),
        "peak_mib": {name: round(peak / 2**20, 1) for name, peak in peaks.items()},
        "memory_ratio": round(peaks["vitdense"] / peaks[peer], 3),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{mode}: vitdense has {result['times_faster']}x the speed and {result['memory_ratio']}x the peak memory "
        f"of {peer}"
    )
    for name in functions:
        print(f"  {name:10} median {result['median_s'][name]:8.3f} s   peak {result['peak_mib'][name]:8.1f} MiB")


def step(model: nn.Module, run: Callable, x: Tensor, mode: str, dtype: torch.dtype) -> None:
    """One measured step."""
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        if mode == "train":
            forward_backward(model, run, x)
        else:
            with torch.no_grad():
                run(x)


if __name__ == "__main__":
    main()
