"""What lies beside a program as its proof: photos, what the trained model found in them, and what its blocks computed.

`vitdense.runtime.verify` compares an engine with it on the machine that runs the program, without torch.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitdense.files import atomic_write
from vitdense.runtime import FOUND, SAMPLED, Output, checksum_of, error_at, open_onnxruntime, relative, resize_photo

SAMPLES = 256  # of a block
PIXELS = 450_000  # of a photo: three are some 4 MB
SCOPES = "pkg.torch.onnx.name_scopes"  # of a node: the modules that it is of, as torch's exporter writes them
# Of the program's own relative error, and that of half precision: other machines add in another order.
SLACK, HALF_SLACK = 10, 3
FLOOR = 5e-6  # of bounds in float32


def shrunk(photo: np.ndarray) -> np.ndarray:
    """A photo [H, W, 3] of at most `PIXELS`."""
    height, width = photo.shape[:2]
    by = (PIXELS / (height * width)) ** 0.5
    return photo if by >= 1 else resize_photo(photo, (max(int(height * by), 1), max(int(width * by), 1)))


class Sampled(NamedTuple):
    """A tensor, of which some elements are kept."""

    size: int  # number of its elements
    at: np.ndarray  # places of the kept ones, [SAMPLES]
    values: np.ndarray  # float32, [SAMPLES]


def sampled(x: Tensor) -> Sampled:
    """A sample of a tensor; its places depend on the number of elements alone."""
    at = np.random.default_rng(x.numel()).integers(0, x.numel(), SAMPLES)
    return Sampled(x.numel(), at, x.detach().flatten()[at].float().numpy())


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Sampled]]:
    """What the blocks of a model return within this context, by their names: parts of lists and sequences."""
    found: dict[str, Sampled] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.ModuleList | nn.Sequential):
                for key, block in module.named_children():

                    def keep(block: nn.Module, args: tuple, out: object, name: str = f"{name}.{key}") -> None:
                        if isinstance(out, Tensor) and out.is_floating_point():
                            found[name] = sampled(out)

                    stack.enter_context(block.register_forward_hook(keep))
        yield found


def tensors_of(path: str | Path) -> dict[str, str]:
    """Modules of an ONNX file of `vitdense.export.onnx.save_onnx`, and the tensor that each ends with, in the order of
    the graph."""
    import onnx

    found: dict[str, str] = {}
    for node in onnx.load(path).graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes)[1:-1]:
            name = scope.removeprefix("model.")
            found.pop(name, None)
            found[name] = node.output[0]
    return found


def write_proof(
    path: Path,
    program: Path,
    about: Mapping[str, Any],
    precision: str,
    photos: Sequence[np.ndarray],
    batches: Sequence[np.ndarray],
    blocks: Sequence[Mapping[str, Sampled]],
    halves: Mapping[str, Sampled],
    results: Sequence[Output],
) -> int:
    """Write the proof of a program; the number of its blocks.

    Blocks that the program has not, or has otherwise, are left out: an optimiser may have joined them with others.

    Args:
        batches: What the program takes for each.
        blocks: What the model computed for each in float32, see `recording`; outputs that are maps as ``the output X``.
        halves: For the first photo, what it computed in half precision.
        results: What it found in each.
    """
    ends = {}  # of blocks that end with the same tensor, the outermost
    for name, tensor in tensors_of(program).items():
        if name in blocks[0]:
            ends[tensor] = min(ends.get(tensor, name), name, key=len)
    tensors = {name: tensor for tensor, name in ends.items()}
    engine = open_onnxruntime(program, more=[*tensors.values()])
    outputs = [name for name in engine.outputs if name not in ends]
    tensors |= {f"the output {name}": name for name in outputs if f"the output {name}" in blocks[0]}
    errors: dict[str, float] = dict.fromkeys(tensors, 0.0)
    for batch, of_photo in zip(batches, blocks):
        found = dict(zip(engine.outputs, engine.run(batch)))
        for name, tensor in tensors.items():
            errors[name] = max(errors[name], error_at(found[tensor], *of_photo[name]))
    limit = 1e-3 if precision == "float32" else 0.5  # beyond it, the tensor is not what the block returns
    kept = [name for name, error in errors.items() if error < limit]
    half = {name: relative(halves[name].values, blocks[0][name].values) for name in kept}
    own = [max(SLACK * errors[name], FLOOR) if precision == "float32" else 2 * errors[name] for name in kept]
    bounds = {
        "own": [1e-3 if precision == "float16" else FLOOR, *own],
        "half": [1e-2, *(HALF_SLACK * half[name] + limit for limit, name in zip(own, kept))],
    }
    index = {
        **{"about": dict(about), "precision": precision, "bounds": bounds, "photos": len(photos)},
        **{"outputs": outputs, "checksum": checksum_of(program)},
        **{"blocks": ["the image", *(name.removeprefix("model.") for name in kept)]},
        **{"tensors": [tensors[name] for name in kept], "segments": [result.segments for result in results]},
    }
    arrays = {"index": np.array(json.dumps(index))}
    for i, (photo, batch, of_photo, result) in enumerate(zip(photos, batches, blocks, results)):
        samples = zip(*(sampled(torch.from_numpy(batch[0])), *(of_photo[name] for name in kept)))
        arrays |= {f"photo{i}": photo, **{f"{name}{i}": np.array(part) for name, part in zip(SAMPLED, samples)}}
        arrays |= {f"{name}{i}": value for name in FOUND if (value := getattr(result, name)) is not None}
    with atomic_write(path) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return len(kept)
