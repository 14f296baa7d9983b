"""Put faults into exported programs, and see whether `vitdense verify` finds each, and where.

python scripts/graph_faults.py exports/*.onnx
"""

import argparse
import ast
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from vitdense import runtime
from vitdense.export.proof import SCOPES

OF_FILE = {  # what the file says of itself: another value
    "mean": lambda mean: mean[::-1] if mean[0] != mean[-1] else [2 * x for x in mean],
    "std": lambda std: [2 * x for x in std],
    "channels": lambda name: "BGR" if name == "RGB" else "RGB",
    "resize": lambda rule: {"scale": [96, 96], "keep_ratio": False},
    "classes": lambda names: [*names[1:], names[0]],
    "mask_thr": lambda threshold: threshold + 0.2,
}
WEIGHTS = {  # of a linear layer: another value
    "a transposed weight": np.transpose,
    "a weight 10 % off": lambda weight: weight * np.float32(1.1),
    "a weight in int8": lambda weight: (
        np.rint(weight * (np.float32(127) / abs(weight).max())) * (abs(weight).max() / 127)
    ),
}

MODE = "coordinate_transformation_mode"


class Fault(NamedTuple):
    """A fault in a program.

    Attributes:
        name: What it is.
        node: In which node it is; None: in what the file says of itself.
        change: Makes it, in place.
    """

    name: str
    node: int | None
    change: Callable[[ModelProto], None]


def set_value(model: ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change a weight."""
    (tensor,) = (x for x in model.graph.initializer if x.name == name)
    value = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(value), value.dtype), name))


def set_entry(model: ModelProto, key: str, change: Callable) -> None:
    """Change what the file says of itself."""
    (entry,) = (entry for entry in model.metadata_props if entry.key == key)
    entry.value = json.dumps(change(json.loads(entry.value)))


def set_attribute(model: ModelProto, node: int, name: str, value: object) -> None:
    """Change an attribute of a node."""
    attributes = model.graph.node[node].attribute
    kept = [one for one in attributes if one.name != name]
    del attributes[:]
    attributes.extend([*kept, helper.make_attribute(name, value)])


def set_half(model: ModelProto, node: int) -> None:
    """Let what a node gives go through half precision."""
    name = model.graph.node[node].output[0]
    model.graph.node[node].output[0] = f"{name}_full"
    there = helper.make_node("Cast", [f"{name}_full"], [f"{name}_half"], to=TensorProto.FLOAT16)
    model.graph.node.insert(node + 1, there)
    model.graph.node.insert(node + 2, helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))


def faults_of(model: ModelProto) -> Iterator[Fault]:
    """Faults for a program: one of each kind that it has a place for, at nodes spread over the graph."""
    nodes, weights = [*model.graph.node], {x.name: list(x.dims) for x in model.graph.initializer}
    said = {entry.key: json.loads(entry.value) for entry in model.metadata_props if entry.key in OF_FILE}

    def places(kind: str, fits: Callable[[NodeProto], bool] = lambda node: True) -> list[int]:
        return [i for i, node in enumerate(nodes) if node.op_type == kind and scopes_of(node) and fits(node)]

    for key, change in OF_FILE.items():
        if said.get(key) is not None:
            yield Fault(f"{key} of another model", None, lambda model, k=key, c=change: set_entry(model, k, c))
    products = places("MatMul", lambda node: len(weights.get(node.input[1], ())) == 2)
    square = [i for i in products if len({*weights[nodes[i].input[1]]}) == 1]
    for (name, change), found in zip(WEIGHTS.items(), (square, products[1::2], products[::3])):
        if found:
            i = found[len(found) // 2]
            yield Fault(name, i, lambda model, w=nodes[i].input[1], c=change: set_value(model, w, c))
    convolutions = places("Conv", lambda node: weights.get(node.input[1], (0, 0))[1] == 3)
    for i in convolutions[:1]:
        weight = nodes[i].input[1]
        yield Fault("BGR for RGB", i, lambda model, w=weight: set_value(model, w, lambda x: x[:, ::-1]))
    for i in [*places("MatMul")[-3:-2], *places("LayerNormalization")[1:2], *places("Add")[-1:]]:
        yield Fault(f"{nodes[i].op_type} in half precision", i, lambda model, i=i: set_half(model, i))
    for i in places("LayerNormalization")[2:3]:
        yield Fault("epsilon of LayerNorm 1e-3", i, lambda model, i=i: set_attribute(model, i, "epsilon", 1e-3))
    for i in places("Softmax")[1:2]:
        yield Fault("axis of Softmax", i, lambda model, i=i: set_attribute(model, i, "axis", -2))
    for i in places("Gelu")[1:2]:
        yield Fault("GELU by tanh", i, lambda model, i=i: set_attribute(model, i, "approximate", "tanh"))
    for i in places("Resize")[-1:]:
        yield Fault("resize of maps, asymmetric", i, lambda model, i=i: set_attribute(model, i, MODE, "asymmetric"))
    biases = places("Add", lambda node: any(len(weights.get(name, ())) >= 3 for name in node.input))
    for i in biases[:1]:
        table = next(name for name in nodes[i].input if len(weights.get(name, ())) >= 3)
        yield Fault(
            "positions moved by one", i, lambda model, t=table: set_value(model, t, lambda x: np.roll(x, 1, -2))
        )


def scopes_of(node: NodeProto) -> list[str]:
    """The modules that a node is of, the outermost first."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    return [scope.removeprefix("model.").removeprefix("model.") for scope in ast.literal_eval(scopes)[1:-1]]


def expected(model: ModelProto, proof: runtime.Proof, node: int) -> set[str]:
    """The blocks that a fault in a node may be named by: the innermost that has the node, or the first after it."""
    ends = {node.output[0]: i for i, node in enumerate(model.graph.node)}
    places = {block: ends[tensor] for block, tensor in zip(proof.blocks[1:], proof.tensors)}
    inside = [block for block in proof.blocks if block in scopes_of(model.graph.node[node])]
    after = [block for block, place in places.items() if place >= node]
    return {*inside[:1], *after[:1]} or {"what is found"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+", type=Path)
    found, right, number = 0, 0, 0
    print("| program | fault | found | from | right |\n|---|---|---|---|---|")
    for program in parser.parse_args().programs:
        assert runtime.verify(program)[0], program
        model, proof = onnx.load(program), runtime.Proof(program.with_suffix(".proof"))
        for fault in faults_of(model):
            with TemporaryDirectory() as folder:
                path = Path(folder, program.name)
                shutil.copy(program.with_suffix(".proof"), folder)
                changed = onnx.load(program)
                fault.change(changed)
                onnx.save(changed, path)
                same, said = runtime.verify(path)
            where = {"the file says"} if fault.node is None else expected(model, proof, fault.node)
            names = any(f"from {name} on:" in said or (" " in name and name in said) for name in where)
            number, found, right = number + 1, found + (not same), right + (not same and names)
            said = said.removeprefix("differs").lstrip(": ").replace("|", "/")
            print(f"| {program.stem} | {fault.name} | {'no' if same else 'yes'} | {said} | {names and not same} |")
    print(f"\n{found} of {number} found, the first block right in {right}")


if __name__ == "__main__":
    main()
