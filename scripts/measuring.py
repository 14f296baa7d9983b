"""What `vitdense benchmark` measures and prints: a backbone of ours beside another project's."""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from cost import DEVICES
from counting import as_json, build, count_draw_rows, count_rows, draw_as_json, draw_table, table, top_table
from deploy import cpu_name, speeds, time_forms
from deploy import table as deploy_table
from peers import PEERS, comparable, find
from timing import alternate, forward_backward, median_ratio, peak_memory
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.load import load_pretrained
from vitdense.errors import check_choice
from vitdense.mm.precision import check_device

DROP_PATH = 0.1  # of both models; 0 for counts, which are then the same in every pass
Models = dict[str, tuple[nn.Module, Callable]]  # by name: the model, and its forward pass


def models_of(args: argparse.Namespace) -> Models:
    """The models that the arguments of the tool name, ours first.

    Raises:
        ValueError: There is no such model, project or device.
    """
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    check_device("--device", args.device)
    check_choice("--device-model", args.device_model, DEVICES)
    models: Models = {}
    for peer in args.peer:
        models |= pair(args.model, peer, tuple(args.shape), 0.0 if args.count else DROP_PATH)
    return models


def measure(args: argparse.Namespace, models: Models) -> None:
    """Count or time what the arguments ask for, and print."""
    if args.sizes:
        report_draw(args, models)
    elif args.count:
        report_counts(args, models)
    elif args.deploy:
        report_deploy(args, models)
    else:
        for mode in args.mode:
            is_loading = mode == "load"
            report(args, mode, loading(models["vitdense"][0]) if is_loading else running(args, mode, models))


def pair(name: str, peer: str, shape: tuple[int, int], drop_path_rate: float = DROP_PATH) -> Models:
    """Our model and the baseline, each with its forward pass, by name.

    Args:
        name: Name of the model table.
        peer: ``project``, ``project:model`` or empty, for the default.
        shape: Image (h, w) in pixels.
        drop_path_rate: Of both.

    Raises:
        ValueError: There is no such model or project, or the project has no such model or not for this shape.
    """
    project, _, other = peer.partition(":")
    ours, spec = comparable(find(other or name), shape, drop_path_rate)
    peers = PEERS[ours.family]
    if not peers:
        raise ValueError(f"--peer: no other project has {name}; give a model of about its cost: --peer mmdet:swin_tiny")
    project = project or next(iter(peers))
    if project not in peers:
        raise ValueError(f"--peer: got {project}, expected one of {', '.join(peers)} for {other or name}")
    if features := peers[project].unsupported_features(spec):
        raise ValueError(
            f"--peer: {project} has no model with {features}; give another --shape, another of {', '.join(peers)}, or "
            f"a model of about the same cost: --peer mmdet:swin_tiny"
        )
    if other:
        ours = build(name, drop_path_rate)
    theirs = peers[project].build(spec)
    for model in (ours, theirs):
        randomise_biases(model)
    return {"vitdense": (ours, ours), peer or project: (theirs, partial(peers[project].run, theirs))}


def randomise_biases(model: nn.Module) -> None:
    """As in a trained model. Where they are 0, padding has values of 0, whose masked sums no CPU adds at full speed:
    they are below 1e-38."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.02)


def running(args: argparse.Namespace, mode: str, models: Models) -> dict[str, Callable[[], None]]:
    """A step of each model on the same image."""
    x = torch.randn(args.batch, 3, *args.shape, device=args.device)  # [B, 3, H, W]
    for model, _ in models.values():
        model.to(args.device).train(mode == "train")
    dtype = getattr(torch, args.dtype)
    return {name: partial(step, model, run, x, mode, dtype) for name, (model, run) in models.items()}


def loading(ours: nn.Module) -> dict[str, Callable[[], None]]:
    """Our loader on a file with timm's names; torch's loader on a file with our names and the same tensors."""
    folder = tempfile.TemporaryDirectory()
    file, bare = Path(folder.name, "timm.pth"), Path(folder.name, "bare.pth")
    state = ours.state_dict()
    torch.save(convert(state, "timm", drop_output_norms=True).state, file)
    torch.save(state, bare)

    def load() -> None:
        load_pretrained(ours, file)

    def load_bare() -> None:
        assert folder  # keeps the folder until the last call
        ours.load_state_dict(torch.load(bare, map_location="cpu", weights_only=True))

    return {"vitdense": load, "torch": load_bare}


def report(args: argparse.Namespace, mode: str, functions: dict[str, Callable[[], None]]) -> None:
    """Measure and print; the second function is the baseline."""
    _, peer = functions
    seconds = alternate(functions, args.rounds)
    peaks = {name: peak_memory(function, args.device) for name, function in functions.items()}
    result = {
        "mode": mode,
        "model": args.model,
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
        print(f"  {name:18} median {result['median_s'][name]:8.3f} s   peak {result['peak_mib'][name]:8.1f} MiB")


def report_deploy(args: argparse.Namespace, models: Models) -> None:
    """Time every form of both models and print."""
    ours, peer = models
    for model, _ in models.values():
        model.eval()
    x = torch.randn(args.batch, 3, *args.shape)  # [B, 3, H, W]
    with tempfile.TemporaryDirectory() as folder:
        rows = speeds(time_forms(models, x, Path(folder), args.rounds), ours, peer)
    if args.json:
        head = {"model": args.model, "shape": [*x.shape], "cpu": cpu_name(), "threads": args.threads}
        print(json.dumps({**head, "torch": torch.__version__, "rounds": args.rounds, "forms": rows}))
        return
    print(f"{args.model} {[*x.shape]}, {cpu_name()}, {args.threads} threads, torch {torch.__version__}, medians of")
    print(f"{args.rounds} rounds\n\n{deploy_table(rows)}")


def report_counts(args: argparse.Namespace, models: Models) -> None:
    """Count and print."""
    shape = [args.batch, 3, *args.shape]
    device = DEVICES[args.device_model]
    rows = count_rows(models, shape)
    if args.json:
        head = {"shape": shape, "device_model": args.device_model, "torch": torch.__version__}
        for row in rows:
            print(json.dumps({**head, **as_json(row, device, args.top)}))
        return
    print(f"{args.model} {shape}, counted on the meta device with torch {torch.__version__}")
    print(
        f"roofline of {args.device_model}: {device.flops / 1e12:g} TFLOP/s and {device.bandwidth / 1e12:g} TB/s "
        f"({device.source}); {device.launch * 1e6:g} us a launch (order of magnitude)"
    )
    print(table(rows, device))
    if args.top:
        print(f"\nthe {args.top} kernels with the most bytes")
        for row in rows:
            if not isinstance(row.cost, str):
                print(top_table(row, args.top))


def report_draw(args: argparse.Namespace, models: Models) -> None:
    """Count over batches of random sizes and print."""
    from batch_sizes import draw_batch_sizes  # needs mmdet

    shapes = draw_batch_sizes(args.steps, args.seed)
    rows = count_draw_rows(models, shapes)
    batches = {"sizes": args.sizes, "seed": args.seed, "steps": len(shapes), "distinct": len(set(shapes))}
    if args.json:
        for row in rows:
            print(json.dumps({**batches, "torch": torch.__version__, **draw_as_json(row)}))
        return
    print(
        f"{args.model}, counted on the meta device with torch {torch.__version__} over {len(shapes)} batches of "
        f"{len(set(shapes))} sizes, seed {args.seed}: mean, minimum and maximum"
    )
    print(draw_table(rows))


def step(model: nn.Module, run: Callable, x: Tensor, mode: str, dtype: torch.dtype) -> None:
    """One measured step."""
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        if mode == "train":
            forward_backward(model, run, x)
        else:
            with torch.no_grad():
                run(x)
