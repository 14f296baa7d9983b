"""Forms of an ONNX graph that runtimes compute faster, with the same result. What is not recognised stays as it is."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor, replace_all_uses_with
from onnx_ir.passes.common import RemoveUnusedNodesPass

# Operators that compute every token alone, with weights of at most so many axes.
OF_TOKENS = {"LayerNormalization": 1, "Gelu": 0, "Add": 1, "Mul": 1, "MatMul": 2}


def rewrite(model: ir.Model) -> None:
    """Apply all forms of this file."""
    split_projections(model.graph)
    compute_on_tokens(model.graph)
    RemoveUnusedNodesPass()(model)


def split_projections(graph: ir.Graph) -> None:
    """Let queries, keys and values be three products, and the scale of the queries be in their weights.

    They would be copied out of one product, before they are transposed: 52 ms of 2850 for Swin-T 800x1344 in
    onnxruntime. OpenVINO transposes the results of three within its attention.
    """
    for reshape in list(graph):
        if reshape.op_type != "Reshape" or (shape := _constant(reshape.inputs[1])) is None or len(shape) < 4:
            continue
        linear = reshape.inputs[0].producer()
        bias = None
        if linear is not None and linear.op_type == "Add":
            bias, linear = _constant(linear.inputs[1]), linear.inputs[0].producer()
            if bias is None:
                continue
        parts = [_part(user, len(shape) - 3) for user in reshape.outputs[0].consumers()]
        if linear is None or linear.op_type != "MatMul" or not parts or None in parts:
            continue
        x, weight, (*leading, number, heads, dim) = linear.inputs[0], _constant(linear.inputs[1]), shape.tolist()
        if weight is None or weight.ndim != 2 or weight.shape[1] != number * heads * dim:
            continue
        if bias is not None and bias.shape != weight.shape[1:]:
            continue
        if (
            x.shape is None
            or len(x.shape) != len(leading) + 1
            or any(n not in (-1, m) for n, m in zip(leading, x.shape))
        ):
            continue
        for index, out in parts:
            columns = slice(index * heads * dim, (index + 1) * heads * dim)
            factor = _absorb_factor(out)
            name = f"{reshape.outputs[0].name}.{index}"
            own = _initializer(graph, f"{name}.weight", weight[:, columns], factor)
            y = _insert(reshape, "MatMul", x, own)
            if bias is not None:
                y = _insert(reshape, "Add", y, _initializer(graph, f"{name}.bias", bias[columns], factor))
            y = _insert(reshape, "Reshape", y, _numbers(reshape, [0] * len(leading) + [heads, dim]))  # [..., heads, d]
            y.shape, y.type = out.shape, out.type
            replace_all_uses_with(out, y)


def _part(user: ir.Node, axis: int) -> tuple[int, ir.Value] | None:
    """Of a slice of one index along an axis, which is then squeezed: the index, and the result."""
    after = user.outputs[0].consumers()
    if user.op_type != "Slice" or [node.op_type for node in after] != ["Squeeze"] or _is_output(user, after[0]):
        return None
    numbers = [_constant(value) for value in (*user.inputs[1:4], *after[0].inputs[1:])]
    if [None if value is None else value.size for value in numbers] != [1] * 4 or len(user.inputs) > 4:
        return None
    start, stop, *axes = (value.item() for value in numbers)
    return (start, after[0].outputs[0]) if axes == [axis] * 2 and stop == start + 1 else None


def _absorb_factor(value: ir.Value) -> np.ndarray:
    """The number that a value is multiplied with after transposes alone, 1 if there is none; the product goes."""
    users = value.consumers()
    while len(users) == 1 and users[0].op_type in ("Transpose", "Reshape") and not _is_output(users[0]):
        (value,) = users[0].outputs
        users = value.consumers()
    if len(users) == 1 and users[0].op_type == "Mul" and not _is_output(users[0]):
        factor = _constant(users[0].inputs[1])
        if factor is not None and factor.size == 1:
            replace_all_uses_with(users[0].outputs[0], value)
            return factor
    return np.ones(())


def compute_on_tokens(graph: ir.Graph) -> None:
    """Let every LayerNorm of a map ``[B, H, W, C]``, and what computes every token alone before and after it, be of
    tokens ``[B, N, C]``.

    OpenVINO takes the norm of a map apart, with which Swin-T 800x1344 in bfloat16 takes 1.15 times the time, and copies
    a map before and after every sum. After the optimiser, which loses constants of two reshapes.
    """
    tokens: dict[ir.Value, ir.Value] = {}  # of maps
    sizes: dict[ir.Value, ir.Value] = {}  # of maps, as values
    for node in list(graph):
        out, axes = node.outputs[0], OF_TOKENS.get(node.op_type)
        if axes is None or out.is_graph_output() or _constant(node.inputs[0]) is not None:
            continue
        maps = [x for x in node.inputs if (weight := _constant(x)) is None or weight.ndim > axes]
        if node.op_type == "MatMul" and maps != [node.inputs[0]]:
            continue  # of two maps, as queries and keys
        dims, first = _dims(out), maps[0]
        are_maps = all(len(_dims(x)) == 4 and _dims(x)[:3] == dims[:3] and type(_dims(x)[3]) is int for x in maps)
        is_norm = node.op_type == "LayerNormalization"
        if not are_maps or (not is_norm and (None in dims or not any(x in tokens for x in maps))):
            continue
        is_static = all(type(n) is int for n in dims)
        if not is_static and dims[3] != _dims(first)[3]:
            continue
        for x in maps:
            if x not in tokens:
                tokens[x] = _insert(node, "Reshape", x, _numbers(node, [0, -1, _dims(x)[3]]))  # [B, N, C]
        size = _numbers(node, dims) if is_static else sizes.get(first) or _insert(node, "Shape", first)
        for i, x in enumerate(node.inputs):
            if x in maps:
                node.replace_input_with(i, tokens[x])
        back = ir.node("Reshape", [out, size])  # [B, H, W, C]
        y = back.outputs[0]
        y.shape, y.type, out.shape = out.shape, out.type, ir.Shape([out.shape[0], None, dims[3]])
        replace_all_uses_with(out, y)
        back.replace_input_with(0, out)
        graph.insert_after(node, back)
        tokens[y], sizes[y] = out, size


def _dims(value: ir.Value) -> list[int | str | None]:
    """Sizes of a value: numbers, names of unknown ones, or None."""
    return [n if isinstance(n, int) else n.value for n in value.shape or ()]


def _is_output(*nodes: ir.Node) -> bool:
    """Whether the result of a node is one of the graph."""
    return any(node.outputs[0].is_graph_output() for node in nodes)


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """The numbers of a value that is a constant."""
    tensor = None if value is None else get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _insert(before: ir.Node, kind: str, *inputs: ir.Value) -> ir.Value:
    """The result of a new node."""
    node = ir.node(kind, inputs)
    before.graph.insert_before(before, node)
    return node.outputs[0]


def _numbers(before: ir.Node, numbers: Sequence[int]) -> ir.Value:
    """A constant as a new node."""
    node = ir.node("Constant", [], {"value_ints": list(numbers)})
    before.graph.insert_before(before, node)
    return node.outputs[0]


def _initializer(graph: ir.Graph, name: str, array: np.ndarray, factor: np.ndarray) -> ir.Value:
    """A constant of the graph: an array times a number."""
    value = ir.val(name, const_value=ir.tensor((array * factor).astype(array.dtype), name=name))
    graph.register_initializer(value)
    return value
