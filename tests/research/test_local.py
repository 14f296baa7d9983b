import itertools

import pytest
import torch
from conftest import relative_error
from torch.utils.flop_counter import FlopCounterMode

from cost import CostCounter
from vitdense.flops import macs
from vitdense.layers import layout
from vitdense.research.nat import local
from vitdense.research.nat.local import BORDERS, POSITIONS, LocalAttention, num_offsets

HEADS, DIM, SCALE = 2, 4, 0.7
every_border = pytest.mark.parametrize("border", BORDERS)
every_position = pytest.mark.parametrize("position", POSITIONS)


def attend_local(q, k, v, *args, **options):
    return local.attend_local(q, torch.stack([k, v], dim=3), *args, **options)


def inputs(batch, h, w, kernel, border, position, dtype=torch.float64, dim=DIM):
    q, k, v = (torch.randn(batch, h, w, HEADS, dim, dtype=dtype) for _ in range(3))
    length = num_offsets(kernel, border)
    tables = {
        "table": torch.randn(HEADS, length, length, dtype=dtype),
        "query": tuple(torch.randn(HEADS, length, dim // 2, dtype=dtype) for _ in "hw"),
        None: None,
    }
    return q, k, v, tables[position]


def neighbours(i, size, kernel, border):
    start = i - kernel // 2
    if border == "clamp":
        start = max(min(start, size - kernel), 0)
    return [j for j in range(start, start + kernel) if border == "zero" or 0 <= j < size]


def definition(q, k, v, kernel, border, position, scale):
    """Query by query; what is outside of the map is zero."""
    _, h, w = q.shape[:3]
    out, nothing = torch.zeros_like(q), torch.zeros_like(q[:, 0, 0])
    for y, x in itertools.product(range(h), range(w)):
        seen = [*itertools.product(neighbours(y, h, kernel, border), neighbours(x, w, kernel, border))]
        inside = [0 <= row < h and 0 <= column < w for row, column in seen]
        keys, values = (
            torch.stack([t[:, row, column] if here else nothing for (row, column), here in zip(seen, inside)], 2)
            for t in (k, v)
        )  # [B, heads, keys, d]
        query = q[:, y, x, :, :, None]  # [B, heads, d, 1]
        logits = scale * (keys @ query)  # [B, heads, keys, 1]
        if isinstance(position, tuple):
            rows, columns = position
            centre = rows.shape[1] // 2
            offsets = [torch.cat([rows[:, y - i + centre], columns[:, x - j + centre]], -1) for i, j in seen]
            logits += scale * (torch.stack(offsets, 1) @ query)
        elif position is not None:
            centre = position.shape[1] // 2
            logits += torch.stack([position[:, y - i + centre, x - j + centre] for i, j in seen], 1)[..., None]
        out[:, y, x] = (logits.softmax(2) * values).sum(2)
    return out.flatten(3)


SIZES = [*itertools.product([(9, 17), (3, 4), (1, 8)], [3, 7]), ((26, 29), 3), ((25, 3), 19), ((3, 41), 17)]


@pytest.mark.parametrize(("size", "kernel"), SIZES)
@every_border
@every_position
def test_tiles_are_the_definition(size, kernel, border, position):
    """On several tiles, a map smaller than the kernel, a row of whole tiles; with inner tiles, and where tiles next to
    those at the border are concerned by it too."""
    q, k, v, position = inputs(1, *size, kernel, border, position)
    got = attend_local(q, k, v, kernel, border, position, SCALE)
    torch.testing.assert_close(got, definition(q, k, v, kernel, border, position, SCALE), rtol=1e-10, atol=1e-10)


@every_border
@every_position
@pytest.mark.parametrize("size", [(9, 10), (2, 3)])
def test_gradients(border, position, size):
    q, k, v, position = inputs(1, *size, 3, border, position)
    tables = position if isinstance(position, tuple) else () if position is None else (position,)
    tensors = [x.requires_grad_() for x in (q, k, v, *tables)]

    def run(q, k, v, *tables):
        given = tables if len(tables) == 2 else tables[0] if tables else None
        return attend_local(q, k, v, 3, border, given, SCALE)

    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)


@every_border
@every_position
@pytest.mark.parametrize("size", [(26, 41), (3, 5)])
def test_traced_form_is_the_same(border, position, size, monkeypatch):
    q, k, v, position = inputs(2, *size, 7, border, position)
    want = attend_local(q, k, v, 7, border, position)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(attend_local(q, k, v, 7, border, position), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_border
@every_position
@pytest.mark.parametrize("size", [(9, 17), (1, 1), (25, 3)])
def test_half_precision_with_padded_tiles(dtype, border, position, size):
    """Padded queries see keys, so that nothing is NaN, also in gradients; hidden pairs stay hidden."""
    q, k, v, position = inputs(2, *size, 3, border, position, dim=16)
    want = attend_local(q, k, v, 3, border, position)
    tables = position if isinstance(position, tuple) else () if position is None else (position,)
    tensors = [x.to(dtype).requires_grad_() for x in (q, k, v, *tables)]
    tables = tuple(tensors[3:]) if len(tables) == 2 else tensors[3] if tables else None
    got = attend_local(*tensors[:3], 3, border, tables)
    assert got.dtype == dtype
    assert relative_error(got.detach().double(), want) < 0.03
    got.float().square().sum().backward()
    assert all(x.grad.isfinite().all() for x in tensors)


def layout_of(h, w, kernel, border, joint=True):
    return local.tile_layout(torch.zeros(1), (h, w), (h, w), kernel, border, num_offsets(kernel, border), joint)


@every_border
def test_biases_do_not_grow_with_the_batch_and_hardly_with_the_rows(border):
    """Tiles that are not at the border share a bias: 200 rows have as few groups as 48."""
    found = [layout_of(h, 80, 7, border) for h in (48, 200)]
    assert [len(tiles.groups) for tiles in found] == [{"mask": 3, "zero": 1, "clamp": 3}[border]] * 2
    assert found[0].index.shape == found[1].index.shape


def kept_bytes():
    axes = [x for kept in layout._caches for x in kept.values() if isinstance(x, local._Axis)]
    return sum(x.nbytes for axis in axes for x in (axis.keys, axis.offsets, axis.kinds) if x is not None)


@every_position
@every_border
def test_what_is_kept_is_of_an_axis(border, position):
    """Sizes of the same rows and columns keep nothing more, and a side of twice the positions twice as much at most."""
    layout.empty_cache()
    sides, joint = (40, 57, 63), position != "query"
    for side in sides:
        layout_of(side, side, 7, border, joint)
    kept = kept_bytes()
    for size in itertools.product(sides, sides):
        layout_of(*size, 7, border, joint)
    assert kept_bytes() == kept
    for side in sides:
        layout_of(2 * side, 2 * side, 7, border, joint)
    assert kept < kept_bytes() <= 3 * kept + 1000
    assert kept < sum(sides) * 2 * 16 * (14 if joint else 140)


def test_module_projects_and_attends():
    """`"query"` as in stand-alone self-attention: no bias, no scale."""
    layer = LocalAttention(8, HEADS, 5, "zero", "query", qkv_bias=False, scale=1.0).double()
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "qkv.weight": (24, 8),
        "rel_pos_h": (HEADS, 5, 2),
        "rel_pos_w": (HEADS, 5, 2),
    }
    assert layer.rel_pos_h.std() < 0.1
    x = torch.randn(2, 7, 9, 8, dtype=torch.float64)
    q, k, v = ((x @ part.T).unflatten(-1, (HEADS, DIM)) for part in layer.qkv.weight.chunk(3))
    want = definition(q, k, v, 5, "zero", (layer.rel_pos_h, layer.rel_pos_w), 1.0)
    torch.testing.assert_close(layer(x), want, rtol=1e-10, atol=1e-10)


@every_border
def test_module_with_a_table_and_without_positions(border):
    x = torch.randn(1, 7, 9, 8, dtype=torch.float64)
    table, none = (LocalAttention(8, HEADS, 3, border, position).double() for position in ("table", None))
    length = {"mask": 3, "zero": 3, "clamp": 5}[border]
    assert table.bias.relative_position_bias_table.shape == (length, length, HEADS)
    none.load_state_dict({name: value for name, value in table.state_dict().items() if "qkv" in name}, strict=True)
    q, k, v = table.qkv(x).unflatten(-1, (3, HEADS, DIM)).unbind(3)
    of_heads = table.bias.relative_position_bias_table.permute(2, 0, 1)
    torch.testing.assert_close(table(x), definition(q, k, v, 3, border, of_heads, 0.5), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(none(x), definition(q, k, v, 3, border, None, 0.5), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [5, 6, 11])
def test_too_few_offsets_are_refused(length):
    q, table = torch.randn(1, 4, 4, HEADS, DIM), torch.randn(HEADS, length, length)
    with pytest.raises(ValueError, match=f"position: got {length} offsets"):
        attend_local(q, q, q, 7, "clamp", table)
    attend_local(q, q, q, 7, "clamp", torch.randn(HEADS, 15, 15))  # more than are read


@pytest.mark.parametrize(("position", "kernels"), [("table", 45), ("query", 37)])
def test_kernels_of_the_first_pass_of_a_size(position, kernels):
    """How many more than of the second."""
    layer = LocalAttention(8, HEADS, 7, "clamp" if position == "table" else "mask", position).to("meta")
    layout.empty_cache()
    counts = []
    for _ in range(2):
        with torch.no_grad(), CostCounter() as counter:
            layer(torch.empty(1, 40, 57, 8, device="meta"))
        counts.append(counter.cost.kernels)
    assert counts[0] - counts[1] <= kernels


@every_border
@pytest.mark.parametrize(("position", "products"), [("table", 2), ("query", 3), (None, 2)])
def test_published_count_equals_the_definition(border, position, products):
    """`kernel ** 2` pairs for every position, also at the border; tiles compute more."""
    q, k, v, position = inputs(2, 20, 30, 7, border, position)
    q, k, v = (x.to("meta") for x in (q, k, v))
    position = tuple(x.to("meta") for x in position) if isinstance(position, tuple) else position
    position = position.to("meta") if isinstance(position, torch.Tensor) else position
    out, found = macs(lambda: attend_local(q, k, v, 7, border, position))
    assert out.shape == (2, 20, 30, HEADS * DIM)
    assert found == products * 2 * 20 * 30 * 49 * HEADS * DIM
    with FlopCounterMode(display=False) as counter:
        attend_local(q, k, v, 7, border, position)
    assert counter.get_total_flops() // 2 > 2 * found


def test_tiles_move_few_bytes_in_few_kernels():
    """Stage 1 of Swin-T at 800x1344 pixels, as docs/local-attention.md has it."""
    q, table = torch.empty(1, 200, 336, 3, 32, device="meta"), torch.empty(3, 7, 7, device="meta")
    attend_local(q, q, q, 7, "zero", table)  # makes the layouts
    with CostCounter() as counter:
        attend_local(q, q, q, 7, "zero", table)
    assert counter.cost.kernels <= 13
    assert counter.cost.bytes <= 0.525e9
