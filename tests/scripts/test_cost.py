"""Counts of tiny passes, computed by hand: two bytes per floating-point element."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from cost import Cost, CostCounter, Device, count, count_pass


def cost_of(function, model=None):
    with CostCounter(model) as counter:
        function()
    return counter.cost


def kernels_and_bytes(function):
    cost = cost_of(function)
    return cost.kernels, cost.bytes


# Kernels and bytes


def test_views_and_allocations_are_free():
    x = torch.randn(4, 6)

    def views():
        y = x.view(2, 2, 6).permute(2, 0, 1).transpose(0, 1)[0].unsqueeze(0).squeeze(0).expand(6, 2)
        y.detach().reshape(6, 2).split(2)[0].unbind(1)[0].unsqueeze_(0).squeeze_().as_strided((1,), (1,))
        x.chunk(2)[0].t().select(0, 1).narrow(0, 0, 1).flatten()
        (torch.empty(3), torch.empty_like(x), x.new_empty(2), torch.empty_strided((2,), (1,)))

    assert kernels_and_bytes(views) == (0, 0)


def test_a_call_reads_its_arguments_and_writes_its_results_once():
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    i = torch.arange(24)
    assert kernels_and_bytes(lambda: x + y) == (1, 3 * 24 * 2)
    assert kernels_and_bytes(lambda: x.add_(y)) == (1, 3 * 24 * 2)
    assert kernels_and_bytes(lambda: x.double() * 2.0) == (2, 4 * 24 * 2)  # two bytes in every precision
    assert kernels_and_bytes(lambda: i + 1) == (1, 2 * 24 * 8)
    assert kernels_and_bytes(lambda: x > 0) == (1, 24 * 2 + 24)
    assert kernels_and_bytes(lambda: torch.cat([x, y])) == (1, 4 * 24 * 2)
    assert kernels_and_bytes(lambda: x.max(1)) == (1, 24 * 2 + 4 * 2 + 4 * 8)
    assert kernels_and_bytes(lambda: x[:, :3] + 1) == (1, 2 * 12 * 2)
    assert kernels_and_bytes(lambda: torch.arange(5)) == (1, 5 * 8)


def test_a_copy_is_one_kernel_where_data_moves():
    x = torch.randn(4, 6)
    assert kernels_and_bytes(x.contiguous) == (0, 0)
    assert kernels_and_bytes(x.t().contiguous) == (1, 2 * 24 * 2)
    assert kernels_and_bytes(lambda: x.t().reshape(24)) == (1, 2 * 24 * 2)
    assert kernels_and_bytes(lambda: x[:, :3].flatten()) == (1, 2 * 12 * 2)


def test_expanded_dimensions_are_read_once():
    x, row = torch.randn(4, 6), torch.randn(1, 6)
    assert kernels_and_bytes(lambda: x + row.expand(4, 6)) == (1, (24 + 6 + 24) * 2)
    assert kernels_and_bytes(lambda: row.expand(4, 6).contiguous()) == (1, (6 + 24) * 2)
    assert kernels_and_bytes(lambda: torch.ones(()).expand(0, 3) + 1) == (2, 2)  # an empty one is not read


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_gathers_read_what_they_write_and_the_index(dtype):
    table, size = torch.zeros(10, 3, dtype=dtype), 2 if dtype == torch.float32 else 8
    i, j = torch.tensor([1, 5, 5, 2]), torch.tensor([0, 1, 2, 2], dtype=torch.int32)
    assert kernels_and_bytes(lambda: table.index_select(0, i)) == (1, 2 * 12 * size + 4 * 8)
    assert kernels_and_bytes(lambda: table.index_select(0, j)) == (1, 2 * 12 * size + 4 * 4)
    assert kernels_and_bytes(lambda: table[i]) == (1, 2 * 12 * size + 4 * 8)
    assert kernels_and_bytes(lambda: table[i, j]) == (1, 2 * 4 * size + 4 * 8 + 4 * 4)
    assert kernels_and_bytes(lambda: table[:, j]) == (1, 2 * 40 * size + 4 * 4)
    assert kernels_and_bytes(lambda: table.gather(0, i[:, None])) == (1, 2 * 4 * size + 4 * 8)


def test_what_is_only_written_is_not_read():
    x, y, z = torch.randn(4, 6), torch.randn(4, 6), torch.empty(4, 6)
    for fill in (lambda: torch.zeros_like(x), lambda: x.new_ones(4, 6), z.zero_, lambda: z.fill_(1.0), z.bernoulli_):
        assert kernels_and_bytes(fill) == (1, 24 * 2)
    assert kernels_and_bytes(lambda: z.copy_(y)) == (1, 2 * 24 * 2)
    assert kernels_and_bytes(lambda: z.fill_(torch.tensor(1.0))) == (1, 24 * 2 + 2)
    assert kernels_and_bytes(lambda: torch.add(x, y, out=z)) == (1, 3 * 24 * 2)


def test_casts_are_changes_of_a_floating_point_dtype():
    x, half = torch.randn(4, 6), torch.randn(4, 6).half()
    casts = {lambda: x.half(): 1, lambda: x.copy_(half): 1, lambda: x.bfloat16().float(): 2}
    none = (x.float, x.long, x.t().contiguous, lambda: x.copy_(x), torch.arange(3).float, lambda: x + half)
    for function, expected in {**casts, **dict.fromkeys(none, 0)}.items():
        assert cost_of(function).casts == expected


def test_flops_are_two_per_multiply_add():
    x, w = torch.randn(4, 6), torch.randn(6, 5)
    assert cost_of(lambda: x @ w + 1).flops == 2 * 4 * 6 * 5


# Tensors that autograd keeps


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("factor", torch.randn(6))
        self.register_buffer("rows", torch.tensor([0, 2]))

    def forward(self, x):
        y = (x * self.weight * self.factor).exp()  # keeps x and the result
        z = y.view(6, 4)[:3].sin()  # keeps a view of it
        return z[self.rows], z[torch.tensor([0, 2], dtype=torch.int32)]  # keep the indices


def test_kept_storages_count_once_without_parameters_and_buffers():
    model, x = Kept(), torch.randn(4, 6)
    assert cost_of(lambda: model(x), model).kept == (24 + 24) * 2 + 2 * 4
    assert cost_of(lambda: model(x)).kept == (24 + 24) * 2 + 2 * 4 + 6 * 2 + 2 * 8  # x does not train
    with torch.no_grad():
        assert cost_of(lambda: model(x), model).kept == 0


# Attention

Q, K, V = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)
NUM_Q, NUM_K, PAIRS = 240, 336, 210  # elements


def attention_inputs(**options):
    return [torch.randn(shape, **options) for shape in (Q, K, V)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_one_kernel_forward_and_one_backward(device):
    q, k, v = attention_inputs(device=device, requires_grad=True)
    forward = cost_of(lambda: F.scaled_dot_product_attention(q, k, v))
    assert forward.calls == {"attention": 1}
    assert forward.bytes == (2 * NUM_Q + 2 * NUM_K) * 2
    assert forward.flops == sdpa_flop_count(Q, K, V)
    assert forward.kept == (2 * NUM_Q + 2 * NUM_K) * 2
    out_grad = torch.ones(Q, device=device)
    both = cost_of(lambda: F.scaled_dot_product_attention(q, k, v).backward(out_grad))
    assert both.calls == {"attention": 1, "attention_backward": 1}
    assert both.bytes_of["attention_backward"] == (4 * NUM_Q + 4 * NUM_K) * 2  # q, k, v and their gradients, out, its
    assert both.flops == sdpa_flop_count(Q, K, V) + sdpa_backward_flop_count(Q, Q, K, V)


@pytest.mark.parametrize(("trains", "gradient"), [(False, 0), (True, PAIRS // 2)])
def test_a_bias_is_read_as_given_and_has_a_gradient_only_where_it_trains(trains, gradient):
    q, k, v = attention_inputs(requires_grad=True)
    bias = torch.randn(1, 3, 5, 7, requires_grad=trains)
    cost = cost_of(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias).backward(torch.ones(Q)))
    assert cost.bytes_of["attention"] == (2 * NUM_Q + 2 * NUM_K + PAIRS // 2) * 2
    assert cost.bytes_of["attention_backward"] == (4 * NUM_Q + 4 * NUM_K + PAIRS // 2 + gradient) * 2
    assert cost.kept == (2 * NUM_Q + 2 * NUM_K + PAIRS // 2) * 2


def test_forms_of_attention():
    """Options by position and name, masks of booleans, an expanded bias, more values, three dimensions, a module."""
    q, k, v = attention_inputs()
    read, attend = (2 * NUM_Q + 2 * NUM_K) * 2, F.scaled_dot_product_attention
    mask = torch.ones(5, 7, dtype=torch.bool)
    assert kernels_and_bytes(lambda: attend(q, k, v, None, 0.1, True)) == (1, read)
    assert kernels_and_bytes(lambda: attend(query=q, key=k, value=v, scale=2.0)) == (1, read)
    assert kernels_and_bytes(lambda: attend(q, k, v, mask, is_causal=False)) == (1, read + 35)
    assert kernels_and_bytes(lambda: attend(q, k, v, torch.randn(1, 7).expand(2, 3, 5, 7))) == (2, read + 2 * 7 * 2)
    wide, out = torch.randn(2, 3, 7, 16, requires_grad=True), (2, 3, 5, 16)
    cost = cost_of(lambda: attend(q, k, wide).backward(torch.ones(out)))
    assert cost.flops == sdpa_flop_count(Q, K, wide.shape) + sdpa_backward_flop_count(out, Q, K, wide.shape)
    assert cost.bytes_of["attention"] == (NUM_Q + NUM_K + 2 * NUM_K + 2 * NUM_Q) * 2
    assert kernels_and_bytes(lambda: attend(q[0], k[0], v[0])) == (1, read // 2)
    module, x = nn.MultiheadAttention(8, 2).eval(), torch.randn(5, 2, 8)
    assert cost_of(lambda: module(x, x, x, need_weights=False)).calls["attention"] == 1


def test_attention_under_autocast_casts_its_arguments():
    q, k, v = attention_inputs()

    def attend(mask):
        assert F.scaled_dot_product_attention(q, k, v, mask).dtype == torch.bfloat16

    with torch.autocast("cpu", torch.bfloat16):
        cost = cost_of(lambda: attend(torch.randn(5, 7)))
        boolean = cost_of(lambda: attend(torch.ones(5, 7, dtype=torch.bool)))
    assert cost.casts == 4
    assert boolean.casts == 3
    assert cost.bytes_of["aten._to_copy"] == 2 * (NUM_Q + 2 * NUM_K + 35) * 2


def test_attention_computes_again_after_counting():
    q, k, v = attention_inputs()
    want = F.scaled_dot_product_attention(q, k, v)
    with pytest.raises(ZeroDivisionError), CostCounter():
        raise ZeroDivisionError
    assert torch.equal(F.scaled_dot_product_attention(q, k, v), want)


# Whole models


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, 4)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.bias = nn.Parameter(torch.zeros(2, 25, 25))
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 16))
        self.order = None

    def forward(self, x):
        if self.order is None:
            self.order = torch.arange(25, device=x.device).flip(0)
        x = self.conv(x).flatten(2).transpose(1, 2)  # [B, 25, 16]
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)  # [B, 2, 25, 8]
        mask = torch.zeros_like(self.bias)
        x = x + F.scaled_dot_product_attention(q, k, v, self.bias + mask).transpose(1, 2).flatten(2)
        x = (x + self.mlp(x)).index_select(1, self.order)
        return [x.transpose(1, 2).unflatten(2, (5, 5)), x]


def test_cpu_and_meta_agree_and_so_does_a_second_count():
    first = count(Tiny(), torch.randn(2, 3, 20, 20))
    model, x = Tiny().to("meta"), torch.empty(2, 3, 20, 20, device="meta")
    assert count(model, x) == count(model, x) == first
    assert first.forward.kept == 0 < first.train.kept
    assert "aten.bernoulli_" in first.train.calls.keys() - first.forward.calls.keys()


def test_a_first_pass_can_be_counted():
    """It has what the model makes once; gradients are added, as in the passes after it."""
    model, x = Tiny(), torch.randn(2, 3, 20, 20)
    first, second = count_pass(model, x, train=True), count_pass(model, x, train=True)
    more = {name: n - second.calls.get(name, 0) for name, n in first.calls.items()}
    assert {name: n for name, n in more.items() if n} == {"aten.arange": 1, "aten.flip": 1}
    assert model.training
    assert count(Tiny(), x).train == second
    assert count_pass(Tiny(), x).calls["aten.flip"] == 1


# Refusals


def test_products_of_two_dtypes_fail_on_meta_too():
    x, half = torch.empty(2, 2, device="meta"), torch.empty(2, 2, device="meta", dtype=torch.half)
    for product in (
        lambda: torch.bmm(x[None], half[None]),
        lambda: F.scaled_dot_product_attention(x[None, None], x[None, None], half[None, None]),
    ):
        with pytest.raises(RuntimeError, match=r"float16.*float32"), CostCounter():
            product()


def test_inference_mode_is_refused():
    x = torch.randn(2)
    with pytest.raises(RuntimeError, match="no_grad"), CostCounter(), torch.inference_mode():
        x + x


# Roofline


def test_roofline_times():
    cost = Cost({"a": 2, "b": 1}, {"a": 600, "b": 400}, flops=10**6, kept=0, casts=0)
    device = Device(flops=1e9, bandwidth=1e6, source="", launch=1e-3)
    assert cost.seconds(device) == pytest.approx((1e-3, 1e-3, 3e-3))
