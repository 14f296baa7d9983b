"""Put faults into exported programs, see whether `vitdense verify` finds each, and where; and write docs/parity.md.

python scripts/graph_faults.py "Swin detector=exports/cascade.onnx" ViT=exports/linear.onnx --write
"""

import argparse
import ast
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from vitdense import runtime
from vitdense.extensions.proof.make import SCOPES
from vitdense.extensions.proof.verify import Proof
from vitdense.extensions.proof.verify import verify as verified
from vitdense.files import atomic_write, read_text
from zoo import REPO, filled, table

PAGE, HEADING = REPO / "docs/parity.md", "Faults that a proof finds"

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

KINDS = FILE, WEIGHT, HALF, OP, TABLE, INT8 = (
    "the file says another mean, std, order of channels, resize, classes or mask threshold",
    "a weight transposed, 10 % off or in int8; BGR for RGB; classes moved by one",
    "the output of one node in half precision",
    "epsilon of a LayerNorm, axis of a Softmax, GELU by tanh, a resize of maps",
    "a table of positions moved by one",
    "a scale of int8 10 % off",
)
CLASSES = re.compile("cls|class|seg")  # in names of modules that predict classes


class Fault(NamedTuple):
    """A fault in a program.

    Attributes:
        kind: A row of the table.
        name: What it is.
        node: In which node it is; None: in what the file says of itself.
        change: Makes it, in place.
    """

    kind: str
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

    def of_weight(name: str, node: int, change: Callable, kind: str = WEIGHT, place: int = 1) -> Fault:
        return Fault(kind, name, node, lambda model: set_value(model, nodes[node].input[place], change))

    def of_op(name: str, node: int, attribute: str, value: object) -> Fault:
        return Fault(OP, name, node, lambda model: set_attribute(model, node, attribute, value))

    for key, change in OF_FILE.items():
        if said.get(key) is not None:
            yield Fault(FILE, f"{key} of another model", None, lambda model, k=key, c=change: set_entry(model, k, c))
    products = places("MatMul", lambda node: len(weights.get(node.input[1], ())) == 2)
    square = [i for i in products if len({*weights[nodes[i].input[1]]}) == 1]
    for (name, change), found in zip(WEIGHTS.items(), (square, products[1::2], products[::3])):
        if found:
            yield of_weight(name, found[len(found) // 2], change)
    for i in places("Conv", lambda node: weights.get(node.input[1], (0, 0))[1] == 3)[:1]:
        yield of_weight("BGR for RGB", i, lambda weight: weight[:, ::-1])
    last = [i for kind in ("Conv", "MatMul", "Gemm") for i in places(kind, lambda node: node.input[1] in weights)]
    for i in [i for i in last if CLASSES.search(" ".join(scopes_of(nodes[i])))][-1:]:
        axis = -1 if nodes[i].op_type == "MatMul" else 0
        yield of_weight("classes moved by one", i, lambda weight, axis=axis: np.roll(weight, 1, axis))
    of_int8 = [i for i, node in enumerate(nodes) if node.op_type == "DequantizeLinear" and node.input[0] in weights]
    for i in of_int8[len(of_int8) // 2 :][:1]:
        user = next(k for k, node in enumerate(nodes) if nodes[i].output[0] in node.input)
        yield of_weight(INT8, i, lambda scale: scale * np.float32(1.1), INT8)._replace(node=user)
    for i in [*places("MatMul")[-3:-2], *places("LayerNormalization")[1:2], *places("Add")[-1:]]:
        yield Fault(HALF, f"{nodes[i].op_type} in half precision", i, lambda model, i=i: set_half(model, i))
    for i in places("LayerNormalization")[2:3]:
        yield of_op("epsilon of LayerNorm 1e-3", i, "epsilon", 1e-3)
    for i in places("Softmax")[1:2]:
        yield of_op("axis of Softmax", i, "axis", -2)
    for i in places("Gelu")[1:2]:
        yield of_op("GELU by tanh", i, "approximate", "tanh")
    for i in places("Resize")[-1:]:
        is_nearest = any((one.name, one.s) == ("mode", b"nearest") for one in nodes[i].attribute)
        rule = ("nearest_mode", "ceil") if is_nearest else ("coordinate_transformation_mode", "asymmetric")
        yield of_op("resize of maps, by another rule", i, *rule)
    for i in places("Add", lambda node: any(len(weights.get(name, ())) >= 3 for name in node.input))[:1]:
        (place,) = (k for k, name in enumerate(nodes[i].input) if len(weights.get(name, ())) >= 3)
        yield of_weight("positions moved by one", i, lambda x: np.roll(x, 1, -2), TABLE, place)


def scopes_of(node: NodeProto) -> list[str]:
    """The modules that a node is of, the outermost first."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    return [scope.removeprefix("model.").removeprefix("model.") for scope in ast.literal_eval(scopes)[1:-1]]


def expected(model: ModelProto, proof: Proof, node: int) -> set[str]:
    """The blocks that a fault in a node may be named by: the innermost that has the node, or the first after it."""
    nodes = model.graph.node
    inside = [block for block in proof.blocks if block in scopes_of(nodes[node])]
    reached = {*nodes[node].output}
    for later in nodes[node + 1 :]:
        reached.update(later.output if reached.intersection(later.input) else ())
    after = [block for block, tensor in zip(proof.blocks[1:], proof.tensors) if tensor in reached]
    return {*inside[:1], *after[:1]} or {"what is found"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", metavar="[TITLE=]NAME.onnx")
    parser.add_argument("--engines", nargs="+", choices=runtime.ENGINES, default=["onnxruntime"])
    parser.add_argument("--write", action="store_true", help="the table of docs/parity.md")
    args = parser.parse_args()
    counts = defaultdict(lambda: np.zeros(3, int))  # by kind or engine, and program: faults, found, named right
    titles = {title or Path(path).stem: Path(path) for title, _, path in (x.rpartition("=") for x in args.programs)}
    print("| program | engine | fault | found | from | right |\n|---|---|---|---|---|---|")
    for title, program in titles.items():
        model, proof = onnx.load(program), Proof(program.with_suffix(".proof"))
        for engine in args.engines:
            same, said = verified(program, engine)
            print(f"| {title} | {engine} | none | {not same} | {said} | |", flush=True)
            for fault in faults_of(model):
                same, said = verify(program, fault, engine)
                where = {"the file says"} if fault.node is None else expected(model, proof, fault.node)
                names = any(f"from {name} on:" in said or (" " in name and name in said) for name in where)
                for row in (fault.kind, engine) if engine == args.engines[0] else (engine,):
                    counts[row, title] += 1, not same, not same and names
                said = said.replace("|", "/")
                print(f"| {title} | {engine} | {fault.name} | {not same} | {said} | {names} |", flush=True)
    kinds = [kind for kind in KINDS if any(kind == counted for counted, _ in counts)]
    names = {**{kind: kind for kind in kinds}, **{engine: f"all, in {engine}" for engine in args.engines}}
    rows = [(name, *(cell(counts[key, title]) for title in titles)) for key, name in names.items()]
    new = table(f"| faults, found, first block named right | {' | '.join(titles)} |", rows)
    print("", new, f"all: {cell(sum(counts[engine, title] for engine in args.engines for title in titles))}", sep="\n")
    if args.write:
        page = filled(read_text(PAGE), {HEADING: new})
        with atomic_write(PAGE) as scratch:
            scratch.write_text(page, encoding="utf-8")


def cell(counts: np.ndarray) -> str:
    return ", ".join(map(str, counts)) if counts[0] else ""


def verify(program: Path, fault: Fault, engine: str) -> tuple[bool, str]:
    """Whether a program with a fault is the same for `vitdense verify`, and what that says."""
    with TemporaryDirectory() as folder:
        path = Path(folder, program.name)
        shutil.copy(program.with_suffix(".proof"), folder)
        changed = onnx.load(program)
        fault.change(changed)
        onnx.save(changed, path)
        return verified(path, engine)


if __name__ == "__main__":
    main()
