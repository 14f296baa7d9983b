"""The contract of all backbones. A new family is a new row of `contract_rows.MODELS`."""

import re
from functools import partial

import contract_rows
import pytest
import torch
from conftest import REPO, relative_error
from torch import nn

from peers import PEERS, comparable, raw_maps
from verify import fill
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.families import Model
from vitdense.models.vit_adapter.model import Injector

BACKBONES, PRECISION = dict(contract_rows.MODELS), dict(contract_rows.PRECISION)
if (REPO / "tests/research").is_dir():
    import research_rows

    BACKBONES |= research_rows.RESEARCH
    PRECISION |= research_rows.PRECISION
POSITIONS_AND_NORMS = r"|^absolute_pos_embed\.|^tokens\.\w+_position$|^norm\d+\."
FINETUNED = {  # by what trains of every block
    "attention": re.compile(r"\.attn[1-3]?\." + POSITIONS_AND_NORMS),
    "mlp": re.compile(r"\.mlp[1-3]?\." + POSITIONS_AND_NORMS),
}
STEM = ("patch_embed.", "absolute_pos_embed.", "tokens.", "norm_pre.", "conv1.", "bn1.")
WITH_ADAPTERS = BACKBONES | contract_rows.ADAPTERS
every = pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES.keys())
every_with_adapters = pytest.mark.parametrize("make", WITH_ADAPTERS.values(), ids=WITH_ADAPTERS.keys())


def every_but_slow(*quick, models=BACKBONES):
    marks = {name: [] if name in quick else pytest.mark.slow for name in models}
    rows = [pytest.param(make, id=name, marks=marks[name]) for name, make in models.items()]
    return pytest.mark.parametrize("make", rows)


FAMILIES = ("swin", "swin_v2", "mvit", "vit", "nat", "resnet")  # a plain one of each
one_per_family = every_but_slow(*FAMILIES)


def with_fixed_statistics(model):
    """Set train mode, except for batch norms: statistics of a small map amplify rounding errors."""
    for module in model.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def outputs_and_gradients(run, model, x):
    outs = run(x)
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(sum(out.float().square().mean() for out in outs), parameters)
    return [out.detach() for out in outs], torch.cat([grad.flatten() for grad in grads])


def ceil_chain(size, strides, multiple):
    """Sizes after a patch embedding and mergings that each round up, to multiples of a number."""
    out, previous = [], 1
    for stride in strides:
        step, previous = stride // previous, stride
        size = [-(-n // (step * multiple)) * multiple for n in size]
        out.append(tuple(size))
    return out


@every_with_adapters
@pytest.mark.parametrize("size", [(64, 64), (97, 61), (31, 33)])
def test_declared_channels_and_strides(make, size):
    model = make().eval()
    with torch.no_grad():
        outs = model(torch.randn(2, 3, *size))
    assert isinstance(outs, tuple)
    assert [tuple(out.shape) for out in outs] == [
        (2, c, *s) for c, s in zip(model.out_channels, ceil_chain(size, model.out_strides, make.multiple), strict=True)
    ]
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in outs)


@every
@pytest.mark.parametrize(
    ("frozen_stages", "out_indices"),
    [(-1, (1, 2, 3)), (-1, (2,)), (0, (0, 1)), (2, (1, 2, 3)), (2, (0, 1)), ("all", (1, 2, 3))],
)
def test_every_trainable_parameter_gets_a_gradient_and_no_other(make, frozen_stages, out_indices):
    model = make(frozen_stages=frozen_stages, out_indices=out_indices).train()
    loss = sum(out.square().mean() for out in model(torch.randn(1, 3, 72, 104)))
    # All is frozen up to the last output: then nothing may be tracked, let alone trainable, nor drop paths.
    assert frozen_stages != "all" or not any(m.training for m in model.modules() if "Drop" in type(m).__name__)
    assert loss.requires_grad == any(p.requires_grad for p in model.parameters())
    if loss.requires_grad:
        loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name


@every
@pytest.mark.parametrize(
    ("finetune", "frozen_stages"), [pytest.param("attention", -1, marks=pytest.mark.slow), ("attention", 1), ("mlp", 1)]
)
def test_attention_only_and_mlp_only_fine_tuning(make, finetune, frozen_stages):
    """One of them, positions and output norms train, of what is not frozen anyway; drop path and checkpoints work.
    Families without that part refuse."""
    if finetune not in make.parts:
        with pytest.raises((TypeError, ValueError), match="finetune"):
            make(finetune=finetune, frozen_stages=frozen_stages)
        return
    model = make(finetune=finetune, frozen_stages=frozen_stages, drop_path_rate=0.5, with_cp=True).train()
    whole = make(frozen_stages=frozen_stages)
    expected = {name for name, p in whole.named_parameters() if p.requires_grad and FINETUNED[finetune].search(name)}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == expected
    assert any({"attention": ".attn.", "mlp": ".mlp."}[finetune] in name for name in expected)
    x = torch.randn(2, 3, 72, 104)
    sum(out.square().mean() for out in model(x)).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == expected
    assert not all(torch.equal(model(x)[-1], model(x)[-1]) for _ in range(5))  # drop path
    assert not any(isinstance(m, nn.SyncBatchNorm) and m.training for m in model.modules())


@every
def test_only_low_rank_updates_train(make):
    """Updates and output norms train, and the initial model is unchanged. Other backbones refuse LoRA."""
    if "lora" not in make.parts:
        with pytest.raises((ValueError, TypeError), match="finetune"):
            make(finetune="lora")
        return
    make = make.shallow()
    whole = make().eval()
    linear = [name for name, module in whole.named_modules() if isinstance(module, nn.Linear)]
    targets = {name.rpartition(".")[2] for name in linear if re.search(r"\.(attn|mlp)\d*\.\w+$", name)}
    lora = {"type": "lora", "targets": sorted(targets)}
    model = make(finetune=lora, frozen_stages=1, drop_path_rate=0.5, with_cp=True).eval()
    model.load_state_dict(whole.state_dict(), strict=False)
    x = torch.randn(2, 3, 72, 104)
    with torch.no_grad():
        for got, want in zip(model(x), whole(x), strict=True):  # products of MKL round by the place in memory
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    sum(out.square().mean() for out in model.train()(x)).backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, p in model.named_parameters() if p.requires_grad}
    assert any(name.endswith(".lora.B") for name in with_gradient)
    assert all(re.search(r"\.lora\.[AB]$|^norm\d", name) for name in with_gradient)
    assert load_pretrained(make(finetune=lora, frozen_stages=1), model.state_dict()).share == 1  # as resume does
    assert convert(model.state_dict(), "vitdense", merge=True).state.keys() == whole.state_dict().keys()


@every
def test_frozen_stages_in_mmdets_sense(make):
    """Stem, then whole stages with their merging and output norm; from the constructor on; train() returns self."""
    model = make(frozen_stages=2, drop_path_rate=0.5)
    assert model.train() is model
    for name, parameter in model.named_parameters():
        stages = ("stages.0.", "stages.1.", "blocks.0.", "blocks.1.", "layer1.", "layer2.")
        frozen = name.startswith((*STEM, *stages, "norm0.", "norm1."))
        assert parameter.requires_grad is not frozen, name
    assert not any(m.training for m in model.stage_modules()[1].modules())
    assert all(m.training for m in model.stage_modules()[2].modules())
    x = torch.randn(2, 3, 64, 64)
    outs = model(x)
    assert not model.eval().training
    wanted = model(x)
    assert torch.equal(outs[1], wanted[1])  # no drop path in frozen stages
    assert not torch.equal(outs[2], wanted[2])  # a branch is dropped, or scaled for those that are


@every_with_adapters
def test_batch_rows_are_independent(make):
    model = make().eval()
    x = torch.randn(3, 3, 72, 104)
    with torch.no_grad():
        together, alone = model(x), model(x[1:2])
    for a, b in zip(together, alone):
        assert relative_error(a[1:2], b) < 1e-5


@every
def test_an_output_index_does_not_change_the_others(make):
    torch.manual_seed(0)
    some, every_one = make(out_indices=(3,)).eval(), make().eval()
    every_one.load_state_dict(some.state_dict(), strict=False)
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(some(x)[0], every_one(x)[3])


@every_with_adapters
def test_sizes_can_alternate(make):
    """A, B, A in one process: nothing of a size may stick."""
    model = make().eval()
    a, b = torch.randn(1, 3, 64, 128), torch.randn(1, 3, 128, 64)  # the same area
    with torch.no_grad():
        first, _, again = model(a), model(b), model(a)
    assert all(torch.equal(p, q) for p, q in zip(first, again))


@every
@pytest.mark.parametrize("frozen_stages", [pytest.param(-1, marks=pytest.mark.slow), 1])
def test_checkpointing_changes_nothing(make, frozen_stages):
    plain, saving = (make(with_cp=cp, frozen_stages=frozen_stages).train() for cp in (False, True))
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(1, 3, 72, 104)
    calls = {}
    for model in (plain, saving):
        last = model.stage_modules()[-1]
        block = last.blocks[-1] if hasattr(last, "blocks") else last
        block.register_forward_pre_hook(lambda *_, model=model: calls.update({model: calls.get(model, 0) + 1}))
        sum(out.square().mean() for out in model(x)).backward()
    assert (calls[plain], calls[saving]) == (1, 2)
    for (name, p), q in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, msg=name)


SEEDS = 3


def draw_as_trained(model):
    """Branches about as large as the stream, as in trained models: at their initial size they hardly change it."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.2)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        elif isinstance(module, Injector):
            nn.init.constant_(module.gamma, 0.5)
        elif type(module).__name__ == "Gamma":  # of research's attention in ResNets
            nn.init.constant_(module.weight, 0.5)
    return model.eval()


def cast_stream(model):
    for name, module in model.named_modules():
        if re.search(r"(blocks|layer\d)\.\d+$|\.(injector|extractor|extra_extractors\.\d)$", name):
            module.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))
    return model


def ours_and_other(row):
    if row.peer is None:
        arch = {"arch": row.arch} if row.arch else {}
        make = partial(row.kind, **arch, **{**row.options, "drop_path_rate": 0.0})
        ours, other = draw_as_trained(make()), make().eval()
        other.load_state_dict(ours.state_dict())
        return ours, cast_stream(other), row.shape or (64, 64)
    ours, spec = comparable(Model("deep", "deep", row.kind.__name__, row.arch, options=row.options), row.shape)
    draw_as_trained(ours)
    window = row.options.get("window_size")
    done = convert(ours.state_dict(), row.peer, windows=window and [window], drop_output_norms=True)
    peer = PEERS[ours.family][row.peer]
    assert not peer.unsupported_features(spec)
    other = peer.build(spec)
    fill(other, done.backbone)
    other.eval()
    return partial(raw_maps, ours), partial(peer.maps, other), spec.shape


@pytest.mark.long
@pytest.mark.parametrize("row", PRECISION.values(), ids=PRECISION)
@torch.no_grad()
def test_autocast_is_as_precise_as_elsewhere(row):
    """Relative error of the maps against float32, a mean over maps, seeds; every one alone is noisy."""
    if row.peer is not None:
        pytest.importorskip(PEERS[row.kind.family][row.peer].package)
    errors = {dtype: torch.zeros(2) for dtype in (torch.bfloat16, torch.float16)}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        *runs, shape = ours_and_other(row)
        x = torch.randn(2, 3, *shape)
        exact = [run(x) for run in runs]
        assert all(relative_error(a, b) < 1e-5 for a, b in zip(*exact, strict=True))
        for dtype, total in errors.items():
            for i, run in enumerate(runs):
                with torch.autocast("cpu", dtype):
                    maps = run(x)
                total[i] += sum(relative_error(a.float(), b) for a, b in zip(maps, exact[i])) / len(maps) / SEEDS
    assert all(ours <= row.bound * other for ours, other in errors.values())


@every
@torch.no_grad()
def test_weights_of_rgb_for_images_of_six_channels(make):
    """Repeated channels with repeated weights, scaled by 3/6: the stem makes the same map, the rest is the same."""
    rgb, six, image = make().eval(), make(in_channels=6).eval(), torch.randn(1, 3, 64, 96)
    with pytest.raises(CheckpointMismatchError, match=r"images have 3 channels, those of the model 6: .*channels="):
        load_pretrained(six, rgb.state_dict())
    report = load_pretrained(six, rgb.state_dict(), channels="repeat")
    assert "3 -> 6 input channels by channels='repeat'" in str(report)
    assert report.share == 1
    want, got = (model.stem_modules()[0](x) for model, x in ((rgb, image), (six, torch.cat((image, image), dim=1))))
    assert relative_error(got, want) < 1e-5


@every
def test_norms_have_the_familys_epsilon_and_weights_are_drawn_small(make):
    """Linear layers and position tables with a standard deviation of 0.02, as far as their number of values tells."""
    model = make()
    norms = {name: m for name, m in model.named_modules() if isinstance(m, (nn.LayerNorm, nn.BatchNorm2d))}
    assert {m.eps for name, m in norms.items() if not name.endswith(".gate_norm")} == {make.eps}
    drawn = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    names = ("table", "rel_pos_h", "rel_pos_w", "rows", "columns", "_token", "_position")
    positions = [p for name, p in model.named_parameters() if name.endswith(names)]
    if model.family == "vit":  # relative positions join weights that were trained without
        assert not any(p.any() for name, p in model.named_parameters() if "rel_pos" in name)
        positions = [p for p in positions if p.any()]
    drawn += positions
    for tensor in drawn:
        assert tensor.std().item() == pytest.approx(0.02, abs=0.08 / tensor.numel() ** 0.5)  # more than five sigma
