"""Make the proof of a program: photos, the results of the trained model, and samples of what its blocks computed.

`verify` compares an engine with it on the machine that runs the program, without torch.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitdense import runtime
from vitdense.extensions.proof.verify import FOUND, SAMPLED, checksum_of, error_at, opened, relative
from vitdense.files import atomic_write
from vitdense.runtime import Bounds, Output, Program, above, changes, classes_of, likeness

SAMPLES = 256  # elements per block
BYTES = 1_350_000  # most of a photo: three are about 4 MB
SCOPES = "pkg.torch.onnx.name_scopes"  # metadata of a node: its modules, from torch's exporter
# Factors of bounds over the measured relative error in float32 and in half precision, and of results in half precision
# or int8. Other machines add in another order, and an engine may keep the residual stream in bfloat16, unlike autocast:
# a ViT-Adapter in OpenVINO has 4 times the error.
SLACK, HALF_SLACK, FOUND_SLACK = 10, 5, 3
FLOOR, HALF_FLOOR = 5e-6, 2**-5  # least bounds in float32 and half precision; 2^-5 is 8 units of bfloat16


def shrunk(photo: np.ndarray) -> np.ndarray:
    """Shrink a photo [H, W, 3] uint8, or bands [H, W, C] float32, to at most `BYTES`."""
    size, by = photo.shape[:2], (BYTES / photo.nbytes) ** 0.5
    resize = runtime.resize_photo if photo.dtype == np.uint8 else runtime.resize
    return photo if by >= 1 else resize(photo, [max(int(side * by), 1) for side in size])


class Sampled(NamedTuple):
    """A sample of a tensor's elements."""

    size: int  # number of elements in the tensor
    at: np.ndarray  # flat indices, [SAMPLES]
    values: np.ndarray  # float32, [SAMPLES]


def sampled(x: Tensor) -> Sampled:
    """A sample of a tensor; the indices depend only on its number of elements."""
    at = np.random.default_rng(x.numel()).integers(0, x.numel(), SAMPLES)
    return Sampled(x.numel(), at, x.detach().flatten()[at].float().numpy())


class Computed(NamedTuple):
    """What a model computes from a photo."""

    blocks: Mapping[str, Sampled]  # see `recording`; outputs that are maps are named ``the output X``
    found: Output


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Sampled]]:
    """Record what blocks of a model return within this context, by name. Blocks are items of lists and sequences."""
    found: dict[str, Sampled] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules(remove_duplicate=False):  # a shared trunk has a name in each model
            if isinstance(module, nn.ModuleList | nn.Sequential):
                for key, block in module.named_children():

                    def keep(block: nn.Module, args: tuple, out: object, name: str = f"{name}.{key}") -> None:
                        if isinstance(out, Tensor) and out.is_floating_point():
                            found[name] = sampled(out)

                    stack.enter_context(block.register_forward_hook(keep))
        yield found


def tensors_of(path: str | Path) -> dict[str, str]:
    """Modules of a file of `vitdense.export.onnx.save_onnx` and the last tensor of each, in graph order."""
    import onnx

    found: dict[str, str] = {}
    for node in onnx.load(path).graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes)[1:-1]:
            name = scope.removeprefix("model.")
            found.pop(name, None)
            found[name] = node.output[0]
    return found


def proof_of(
    program: Path,
    model: str,
    about: Mapping[str, Any],
    precision: str,
    photos: Sequence[np.ndarray],
    wanted: Sequence[Computed],
    halves: Sequence[Computed],
) -> dict[str, np.ndarray]:
    """The proof of a model in a program, as arrays for `write_proof`.

    Blocks that the program lacks or computes otherwise are left out: an optimiser may have fused them.

    Args:
        model: The model's name in a program of several, else empty.
        precision: Precision of the program, see `vitdense.runtime.BOUNDS`.
        wanted, halves: What the model computes from each photo in float32 and in half precision.
    """
    ends = {}  # last tensor -> the outermost block that ends with it
    for name, tensor in tensors_of(program).items():
        if name in wanted[0].blocks:
            ends[tensor] = min(ends.get(tensor, name), name, key=len)
    tensors = {name: tensor for tensor, name in ends.items()}
    engine = opened(program, [*tensors.values()], "onnxruntime")
    outputs = [name for name in engine.outputs if name not in ends]
    tensors |= {f"the output {name}": name for name in outputs if f"the output {name}" in wanted[0].blocks}
    reader, errors, results, images = Program(program, engine, model=model), dict.fromkeys(tensors, 0.0), [], []
    for photo, want in zip(photos, wanted):
        images.append(reader.batch(photo))
        found = reader.run(images[-1])
        for name, tensor in tensors.items():
            errors[name] = max(errors[name], error_at(found[tensor], *want.blocks[name]))
        results.append((reader.read(found, photo.shape[:2], 0.0), want.found))
    limit = 1e-3 if precision == "float32" else 0.5  # beyond it, the tensor is not the block's output
    kept = [name for name, error in errors.items() if error < limit]
    pairs = [*zip(halves, wanted)]
    half = {name: max(relative(x.blocks[name].values, y.blocks[name].values) for x, y in pairs) for name in kept}
    own = [max((SLACK if precision == "float32" else 2) * errors[name], FLOOR) for name in kept]
    bounds = {
        "own": [1e-3 if precision == "float16" else FLOOR, *own],
        "half": [1e-2, *(max(HALF_SLACK * half[name] + limit, HALF_FLOOR) for limit, name in zip(own, kept))],
    }
    base, in_half = runtime.BOUNDS[precision], [(low.found, want.found) for low, want in pairs]
    if precision == "int8":
        base = counted(results, reader.score_thr, base)
        limits = {"own": base, "half": counted(in_half, reader.score_thr, base)}
    else:
        limits = {"own": base, "half": widened(in_half, runtime.BOUNDS["float16"])}
    index = {
        **{"about": dict(about), "precision": precision, "bounds": bounds, "photos": len(photos)},
        **{"outputs": outputs, "checksum": checksum_of(program)},
        **{"limits": {name: asdict(one) for name, one in limits.items()}},
        **{"blocks": ["the image", *(name.removeprefix("model.") for name in kept)]},
        **{"tensors": [tensors[name] for name in kept], "segments": [want.found.segments for want in wanted]},
    }
    arrays = {"index": np.array(json.dumps(index))}
    for i, (photo, image, want) in enumerate(zip(photos, images, wanted)):
        samples = zip(*(sampled(torch.from_numpy(image[0])), *(want.blocks[name] for name in kept)))
        arrays |= {f"photo{i}": photo, **{f"{name}{i}": np.array(part) for name, part in zip(SAMPLED, samples)}}
        arrays |= {f"{name}{i}": value for name in FOUND if (value := getattr(want.found, name)) is not None}
    start = f"{model}/" if model else ""
    return {name if name.startswith("photo") else start + name: array for name, array in arrays.items()}


def write_proof(path: Path, proofs: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Write the proofs of the models in a program; see `proof_of`."""
    with atomic_write(path) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, **{name: array for proof in proofs for name, array in proof.items()})


def widened(pairs: Sequence[tuple[Output, Output]], base: Bounds) -> Bounds:
    """Bounds for results in half precision, from the changes between `pairs` of results in it and in float32.

    They are `FOUND_SLACK` times the change of pixels, or the change that nine in ten objects keep to; then four in five
    objects must keep to the bounds. No bound is tighter than `base`.
    """
    if pairs[0][1].boxes is None:
        equal = min((classes_of(got) == classes_of(want)).mean() for got, want in pairs)
        return replace(base, classes=min(base.classes, 1 - FOUND_SLACK * (1 - equal)))
    of_boxes, of_scores, of_masks = likeness(pairs, base)
    if not len(of_boxes):
        return base
    iou, mask_iou = (float(1 - FOUND_SLACK * (1 - np.quantile(one, 0.1))) for one in (of_boxes, of_masks))
    difference = max(base.difference, FOUND_SLACK * float(np.quantile(of_scores, 0.9)))
    least = {"iou": min(base.iou, iou), "mask_iou": min(base.mask_iou, mask_iou), "objects": min(base.objects, 0.8)}
    return replace(base, difference=difference, **least)


def counted(pairs: Sequence[tuple[Output, Output]], score_thr: float | Sequence[float], base: Bounds) -> Bounds:
    """Bounds for an int8 program: `FOUND_SLACK` times its share of changes in `pairs`. No bound is tighter than `base`.

    `score_thr` is the minimum score of objects.
    """
    share, _ = changes((above(got, score_thr), above(want, score_thr)) for got, want in pairs)
    kept = min(base.objects, 1 - FOUND_SLACK * share)
    return replace(base, score=float(np.min(score_thr)), classes=kept, objects=kept)
