"""The contract of all backbones. A new family is a new row of BACKBONES."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from conftest import relative_error
from torch import nn

import vitdense
from peers import PEERS, comparable, raw_maps
from verify import fill
from vitdense import NAT, Mixer, MViT, ResNet, Swin, SwinMixer, SwinV2, ViT, ViTAdapter
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.layers.non_local import Gamma
from vitdense.models.rows import Model
from vitdense.models.vit_adapter.model import Injector


def with_random_norms(model):
    """At their initial zero, the norms of Swin V2 make every block the identity; trained ones are below 1."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 0.5, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    return model


def with_random_batch_norms(model):
    """At their initial zero, the last norms of a ResNet's branches and attention layers make all the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
        if isinstance(module, (nn.BatchNorm2d, Gamma)):
            nn.init.normal_(module.weight, 0.5, 0.2)
    return model


def with_drawn_gates(model):
    """New gates of gMLP mix nothing."""
    for name, module in model.named_modules():
        if name.endswith(".linear_tokens"):
            nn.init.normal_(module.weight, std=0.02)
    return model


def with_fixed_statistics(model):
    """In train mode, but for batch norms: statistics of the few pixels of a small map amplify what is rounded."""
    for module in model.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


@dataclass(frozen=True)
class Row:
    """A small backbone, and what its family promises. Called with options, it makes one.

    Attributes:
        kind: Its class.
        arch: Sizes.
        options: Other arguments.
        eps: Epsilon of every LayerNorm.
        prepare: What a new one needs to be a fair example.
        has_attention: Whether there is attention, which can train alone.
    """

    kind: type
    arch: dict
    options: dict = field(default_factory=dict)
    eps: float = 1e-5
    prepare: Callable = lambda model: model
    has_attention: bool = True

    def __call__(self, **options):
        return self.prepare(self.kind(self.arch, **{"drop_path_rate": 0.0, **self.options, **options}))


NANO = {"embed_dims": 16, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
VIT = {"embed_dims": 32, "depth": 4, "num_heads": 2}
MVIT = {"embed_dims": 16, "depths": (1, 2, 2, 2), "num_heads": 1}
MIXER = {"embed_dims": 32, "depth": 4}
RESMLP = {**MIXER, "block": "resmlp", "layer_scale": 0.5}
RESNET = {"embed_dims": 16, "depths": (1, 1, 2, 1)}
BACKBONES = {
    "swin": Row(Swin, NANO),
    "swin, window 4x6, absolute position": Row(
        Swin, NANO, {"window_size": (4, 6), "absolute_position": True, "pretrain_img_size": 64}
    ),
    "swin, positions alone": Row(vitdense.PositionSwin, NANO, {"window_size": 4}),
    "swin, Performer": Row(vitdense.PerformerSwin, NANO),
    "swin_v2": Row(SwinV2, NANO, {"window_size": 4}, prepare=with_random_norms),
    "swin_v2, window 4x6, extra norms, absolute position": Row(
        SwinV2,
        {**NANO, "extra_norm_every": 2},
        {
            "window_size": (4, 6),
            "pretrained_window_sizes": (8, 8, 8, 4),
            "absolute_position": True,
            "pretrain_img_size": 64,
        },
        prepare=with_random_norms,
    ),
    "swin, sliding": Row(vitdense.SlidingSwin, NANO),
    "nat": Row(NAT, {**NANO, "mlp_ratio": 3.0}),
    "nat, LayerScale": Row(NAT, {**NANO, "mlp_ratio": 2.0, "layer_scale": 0.5}, {"kernel_size": 3}),
    # Its first windows are 16x16 tokens, so that 72x104 pixels pad to four of them.
    "mvit": Row(MViT, MVIT, {"pretrain_img_size": 64}, eps=1e-6),
    "mvit, global, two heads": Row(
        MViT, {**MVIT, "num_heads": 2}, {"pretrain_img_size": (64, 96), "window": "global"}, eps=1e-6
    ),
    "mvit v1": Row(
        MViT,
        {
            **MVIT,
            "growth": "mlp",
            "pool": "max",
            "relative_position": False,
            "absolute_position": True,
            "residual_pooling": False,
        },
        {"pretrain_img_size": 64},
        eps=1e-6,
    ),
    "mvit v1, convolutions": Row(
        MViT,
        {
            **MVIT,
            "growth": "mlp",
            "pool_all_queries": False,
            "relative_position": False,
            "absolute_position": True,
            "residual_pooling": False,
        },
        {"pretrain_img_size": 64},
        eps=1e-6,
    ),
    "vit": Row(ViT, VIT, {"pretrain_img_size": 64}, eps=1e-6),
    # Its first three blocks attend in windows of 2x3 tokens.
    "vit, windows, relative positions": Row(
        ViT,
        VIT,
        {
            "pretrain_img_size": 64,
            "window_size": (2, 3),
            "global_indices": (3,),
            "relative_position": True,
            "img_size": 96,
        },
        eps=1e-6,
    ),
    "vit, distilled, parallel, hMLP, LayerScale": Row(
        ViT,
        {**VIT, "distilled": True, "layer_scale": 0.5},
        {"pretrain_img_size": 48, "stem": "hmlp", "parallel": 2},
        eps=1e-6,
    ),
    "vit, hMLP with LN, constant drop path": Row(
        ViT,
        {**VIT, "token_position": False, "constant_drop_path": True},
        {"pretrain_img_size": 64, "stem": "hmlp_ln"},
        eps=1e-6,
    ),
    "vit, 4 parallel branches": Row(
        ViT, {**VIT, "layer_scale": 0.5}, {"pretrain_img_size": 64, "parallel": 4}, eps=1e-6
    ),
    "vit, 2-D positions": Row(ViT, VIT, {"pretrain_img_size": 64, "position": "2d"}, eps=1e-6),
    "vit, ResNet as stem": Row(ViT, {**VIT, "patch_size": 32}, {"pretrain_img_size": 64, "stem": "r26_s32"}, eps=1e-6),
    "vit, talking heads and class attention": Row(
        ViT,
        {**VIT, "token_position": False, "layer_scale": 0.5, "talking_heads": True, "class_blocks": 1},
        {"pretrain_img_size": 64},
        eps=1e-6,
    ),
    # Patches of a table of another grid, registers and rotary positions of the map or of windows, which pad.
    "vit, registers, rotary, SwiGLU": Row(
        ViT,
        {
            **{**VIT, "registers": 2, "layer_scale": 0.5, "norm_eps": 1e-5, "position": "none", "rope": "dinov3"},
            **{"token_position": False, "qkv_bias": "no_key", "ffn": "swiglu", "ffn_dims": 40},
        },
    ),
    "vit, registers, antialias, pre-norm": Row(
        ViT,
        {**VIT, "registers": 2, "position_rule": "antialias", "pre_norm": True, "ffn": "mlp_tanh"},
        {"pretrain_img_size": 64},
        eps=1e-6,
    ),
    "vit, windows, rotary of windows, sub-LN": Row(
        ViT,
        {**VIT, "rope": "eva02", "qkv_bias": "no_key", "ffn": "swiglu_norm", "ffn_dims": 40},
        {"pretrain_img_size": 64, "window_size": (2, 3), "global_indices": (3,)},
        eps=1e-6,
    ),
    "vit, windows, rotary of the map, DINOv2's positions": Row(
        ViT,
        {**VIT, "rope": "dinov3", "qkv_bias": "none", "position_rule": "dinov2"},
        {"pretrain_img_size": 64, "window_size": (2, 3), "global_indices": (3,)},
        eps=1e-6,
    ),
    "vit, conv stem": Row(ViT, VIT, {"pretrain_img_size": 64, "stem": "conv"}, eps=1e-6),
    # An odd window: the zeros of a shift are one more to the left and top than its half.
    "swin_mixer": Row(SwinMixer, NANO, {"window_size": 7}, has_attention=False),
    "swin_mixer, window 4x6": Row(SwinMixer, NANO, {"window_size": (4, 6)}, has_attention=False),
    # Their grid is 4x6 tokens of 16 pixels, so that 72x104 pixels pad to four windows.
    "mixer, windows": Row(Mixer, MIXER, {"pretrain_img_size": (64, 96)}, eps=1e-6, has_attention=False),
    "mixer, resize": Row(
        Mixer, MIXER, {"pretrain_img_size": (64, 96), "transfer": "resize"}, eps=1e-6, has_attention=False
    ),
    "mixer, ResMLP": Row(Mixer, RESMLP, {"pretrain_img_size": (64, 96)}, eps=1e-6, has_attention=False),
    "mixer, gMLP": Row(
        Mixer,
        {**MIXER, "block": "gmlp"},
        {"pretrain_img_size": (64, 96)},
        eps=1e-6,
        prepare=with_drawn_gates,
        has_attention=False,
    ),
    "resnet, non-local": Row(
        ResNet,
        RESNET,
        {"attention": {"kind": "nonlocal", "after": ((1, 0), (2, 0)), "pool": "after"}, "norm_eval": False},
        prepare=with_random_batch_norms,
    ),
    "resnet, SAGAN": Row(
        ResNet,
        {**RESNET, "bottleneck": False},
        {"attention": {"kind": "sagan", "after": ((2, 1), (3, 0))}, "norm_eval": False},
        prepare=with_random_batch_norms,
    ),
    "sasa resnet": Row(
        ResNet,
        {**RESNET, "depths": (1, 1, 1, 1), "local_stages": (0, 2), "num_heads": 4, "kernel": 5},
        {"norm_eval": False},
        prepare=with_random_batch_norms,
    ),
}
POSITIONS_AND_NORMS = r"|^absolute_pos_embed\.|^tokens\.\w+_position$|^norm\d+\."
FINETUNED = {  # by what trains of every block
    "attention": re.compile(r"\.attn[1-3]?\." + POSITIONS_AND_NORMS),
    "mlp": re.compile(r"\.mlp[1-3]?\." + POSITIONS_AND_NORMS),
}
STEM = ("patch_embed.", "absolute_pos_embed.", "tokens.", "norm_pre.", "conv1.", "bn1.")
every = pytest.mark.parametrize("make", BACKBONES.values(), ids=BACKBONES.keys())


def every_but_slow(*quick):
    """All backbones; those that are not named are slow."""
    marks = {name: [] if name in quick else pytest.mark.slow for name in BACKBONES}
    rows = [pytest.param(make, id=name, marks=marks[name]) for name, make in BACKBONES.items()]
    return pytest.mark.parametrize("make", rows)


def outputs_and_gradients(run, model, x):
    """Maps of an image, and the gradients of all parameters as one vector; `run` is the model or a form of it."""
    outs = run(x)
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(sum(out.float().square().mean() for out in outs), parameters)
    return [out.detach() for out in outs], torch.cat([grad.flatten() for grad in grads])


def ceil_chain(size, strides):
    """Sizes after a patch embedding and mergings that each round up."""
    out, previous = [], 1
    for stride in strides:
        step, previous = stride // previous, stride
        size = [-(-n // step) for n in size]
        out.append(tuple(size))
    return out


@every
@pytest.mark.parametrize("size", [(64, 64), (72, 104), (97, 61), (31, 33)])
def test_declared_channels_and_strides(make, size):
    model = make().eval()
    with torch.no_grad():
        outs = model(torch.randn(2, 3, *size))
    assert isinstance(outs, tuple)
    assert [tuple(out.shape) for out in outs] == [
        (2, c, *s) for c, s in zip(model.out_channels, ceil_chain(size, model.out_strides), strict=True)
    ]
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in outs)


@every
@pytest.mark.parametrize("frozen_stages", [-1, 0, 2])
@pytest.mark.parametrize("out_indices", [(1, 2, 3), (0, 1), (2,)])
def test_every_trainable_parameter_gets_a_gradient_and_no_other(make, frozen_stages, out_indices):
    model = make(frozen_stages=frozen_stages, out_indices=out_indices).train()
    loss = sum(out.square().mean() for out in model(torch.randn(1, 3, 72, 104)))
    # All is frozen up to the last output: then nothing may be tracked, let alone trainable.
    assert loss.requires_grad == any(p.requires_grad for p in model.parameters())
    if loss.requires_grad:
        loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), name


@every
@pytest.mark.parametrize(("finetune", "frozen_stages"), [("attention", -1), ("attention", 1), ("mlp", 1)])
def test_attention_only_and_mlp_only_fine_tuning(make, finetune, frozen_stages):
    """One of them, positions and output norms train, of what is not frozen anyway; drop path and checkpoints work.
    Mixers, and ResNets without MLPs, refuse."""
    if not make.has_attention or (make.kind is ResNet and finetune == "mlp"):
        with pytest.raises((TypeError, ValueError), match="finetune"):
            make(finetune=finetune, frozen_stages=frozen_stages)
        return
    model = make(finetune=finetune, frozen_stages=frozen_stages, drop_path_rate=0.5, with_cp=True).train()
    whole = make(frozen_stages=frozen_stages)
    expected = {name for name, p in whole.named_parameters() if p.requires_grad and FINETUNED[finetune].search(name)}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == expected
    assert any({"attention": ".attn.", "mlp": ".mlp."}[finetune] in name for name in expected)
    x = torch.randn(4, 3, 72, 104)
    sum(out.square().mean() for out in model(x)).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == expected
    assert not torch.equal(model(x)[-1], model(x)[-1])  # drop path
    assert not any(isinstance(m, nn.SyncBatchNorm) and m.training for m in model.modules())


@every
def test_low_rank_updates_train_alone(make):
    """With output norms, of what is not frozen anyway; the start is the same model. Others refuse."""
    if not make.has_attention or make.kind is ResNet:
        with pytest.raises((ValueError, TypeError), match="finetune"):
            make(finetune="lora")
        return
    whole = make().eval()
    linear = [name for name, module in whole.named_modules() if isinstance(module, nn.Linear)]
    targets = {name.rpartition(".")[2] for name in linear if re.search(r"\.(attn|mlp)\d*\.\w+$", name)}
    lora = {"type": "lora", "targets": sorted(targets)}
    model = make(finetune=lora, frozen_stages=1, drop_path_rate=0.5, with_cp=True).eval()
    model.load_state_dict(whole.state_dict(), strict=False)
    x = torch.randn(2, 3, 72, 104)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(x), whole(x), strict=True))
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
    x = torch.randn(4, 3, 64, 64)
    assert torch.equal(model(x)[1], model(x)[1])  # no drop path in frozen stages
    assert not torch.equal(model(x)[2], model(x)[2])
    model.eval()
    assert not model.training


@every
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


@every
def test_sizes_can_alternate(make):
    """A, B, A in one process: nothing of a size may stick."""
    model = make().eval()
    a, b = torch.randn(1, 3, 64, 128), torch.randn(1, 3, 128, 64)  # the same area
    with torch.no_grad():
        first, _, again = model(a), model(b), model(a)
    assert all(torch.equal(p, q) for p, q in zip(first, again))


@every
@pytest.mark.parametrize("frozen_stages", [-1, 1])
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


@every
def test_bfloat16_agrees_with_float32(make):
    model = make().eval()
    x = torch.randn(1, 3, 72, 104)
    with torch.no_grad():
        want = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            got = model(x)
    for a, b in zip(got, want):
        assert relative_error(a.float(), b) < 0.05


@dataclass(frozen=True)
class Precision:
    """A deep and narrow model of a family, whose error under autocast is compared with another model's.

    Attributes:
        kind: Its class.
        arch: Sizes.
        options: Other arguments.
        peer: Naming scheme of the model of another project with the same weights, in `scripts/peers.py`. None where no
            model that runs here has these parts: then the same model is compared with itself, with the residual stream
            cast to float32 before every block.
        shape: Image (h, w) in pixels, where it is not that of pretraining.
        bound: On the ratio of the errors.
    """

    kind: type
    arch: dict
    options: dict = field(default_factory=dict)
    peer: str | None = "timm"
    shape: tuple[int, int] | None = None
    bound: float = 1.2


DEEP = {"embed_dims": 48, "depth": 24, "num_heads": 2}
STAGES = {"embed_dims": 16, "depths": (1, 2, 12, 2), "num_heads": (1, 2, 4, 8)}
GRID = {"pretrain_img_size": 64}
EVA = {"qkv_bias": "no_key", "ffn_dims": 96}
# Of the stages after the first one, and of all of MViTv2, the stream is what a linear layer or a convolution makes. By
# torch's rules it is in half precision, in the peers as well. Measured: 1.1 to 1.3.
HALF_STREAM = 1.5
PRECISION = {
    "swin, timm": Precision(Swin, STAGES, {"window_size": 2}, shape=(64, 64)),
    "swin, mmdet": Precision(Swin, STAGES, {"window_size": 2}, "mmdet", (64, 64)),
    "swin_v2": Precision(SwinV2, STAGES, {"window_size": 2}, shape=(64, 64)),
    "mvit": Precision(MViT, {"embed_dims": 16, "depths": (1, 2, 12, 2), "num_heads": 1}, GRID),
    "vit": Precision(ViT, DEEP, GRID),
    "vit, distilled": Precision(ViT, {**DEEP, "distilled": True}, GRID),
    "vit, parallel": Precision(ViT, {**DEEP, "layer_scale": 0.5}, {**GRID, "parallel": 2}),
    "vit, DeiT III": Precision(ViT, {**DEEP, "token_position": False, "layer_scale": 0.5}, GRID),
    "vit, DINOv2 with registers": Precision(ViT, {**DEEP, "registers": 2, "layer_scale": 0.5}, GRID),
    "vit, DINOv3": Precision(
        ViT,
        {
            **{**DEEP, **EVA, "registers": 2, "layer_scale": 0.5, "norm_eps": 1e-5, "position": "none"},
            **{"rope": "dinov3", "token_position": False, "ffn": "swiglu"},
        },
        GRID,
    ),
    "vit, EVA-02": Precision(ViT, {**DEEP, **EVA, "rope": "eva02", "ffn": "swiglu_norm"}, GRID),
    "mixer": Precision(Mixer, {"embed_dims": 48, "depth": 24}, GRID),
    "mixer, ResMLP": Precision(Mixer, {"embed_dims": 48, "depth": 24, "block": "resmlp", "layer_scale": 0.5}, GRID),
    "mixer, gMLP": Precision(Mixer, {"embed_dims": 48, "depth": 24, "block": "gmlp"}, GRID),
    "resnet": Precision(ResNet, {"embed_dims": 64, "depths": (1, 1, 3, 1)}, {}, "torchvision", (64, 64)),
    # No model of another project has these parts and runs here. timm's CaiT wants the weights of class attention, which
    # ours has with `output_cls_token` only.
    "vit, CaiT": Precision(
        ViT, {**DEEP, "token_position": False, "layer_scale": 0.5, "talking_heads": True}, GRID, None
    ),
    "vit, ViTDet": Precision(ViT, DEEP, {**GRID, "window_size": 2, "relative_position": True, "img_size": 64}, None),
    "vit, 2-D positions": Precision(ViT, DEEP, {**GRID, "position": "2d"}, None),
    "nat": Precision(NAT, {**STAGES, "mlp_ratio": 2.0}, {}, None, (64, 64)),
    "swin_mixer": Precision(SwinMixer, STAGES, {"window_size": 2}, None, (64, 64), HALF_STREAM),
    "swin, absolute position": Precision(
        Swin, STAGES, {**GRID, "window_size": 2, "absolute_position": True}, None, (64, 64), HALF_STREAM
    ),
    "swin, Performer": Precision(vitdense.PerformerSwin, STAGES, {}, None, (64, 64), HALF_STREAM),
    "mvit, windows": Precision(
        MViT, {"embed_dims": 16, "depths": (1, 2, 12, 2), "num_heads": 1}, GRID, None, None, HALF_STREAM
    ),
    "resnet, SAGAN": Precision(
        ResNet,
        {"embed_dims": 16, "depths": (1, 1, 6, 1)},
        {"attention": {"kind": "sagan", "after": ((2, 1), (2, 3))}},
        None,
        (64, 64),
    ),
    "vit_adapter": Precision(
        ViTAdapter,
        {},
        {"trunk": {"arch": {**DEEP, "depth": 12}, "drop_path_rate": 0.0, **GRID}, "deform_num_heads": 2},
        None,
        (64, 64),
    ),
}
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
        elif isinstance(module, (Gamma, Injector)):
            nn.init.constant_(module.weight if isinstance(module, Gamma) else module.gamma, 0.5)
    return model.eval()


def cast_stream(model):
    """The residual stream in float32 before every block."""
    for name, module in model.named_modules():
        if re.search(r"(blocks|layer\d)\.\d+$|\.(injector|extractor|extra_extractors\.\d)$", name):
            module.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))
    return model


def ours_and_other(row):
    """The maps of our model and of the other as functions of an image, and the size of the image."""
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
    for dtype, (ours, other) in errors.items():
        print(f"{dtype!s:15} ours {ours:.5f}, {row.peer or 'float32 stream'} {other:.5f}, ratio {ours / other:.2f}")
    assert all(ours <= row.bound * other for ours, other in errors.values())


@every
def test_state_dict_round_trip(make):
    a, b = make().eval(), make().eval()
    b.load_state_dict(a.state_dict(), strict=True)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert all(torch.equal(p, q) for p, q in zip(a(x), b(x)))


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


@every
def test_built_on_meta_and_loaded_it_is_the_same_model(make):
    """`to_empty` leaves non-persistent buffers undefined: index buffers must be made again."""
    want = make().eval()
    with torch.device("meta"):
        got = make().eval()
    got.to_empty(device="cpu")
    got.load_state_dict(want.state_dict())
    x = torch.randn(1, 3, 72, 104)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(got(x), want(x), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("scope", ["mmdet", "mmseg"])
def test_resolves_by_scope_from_mmdet_and_mmseg(scope, repo):
    """In a fresh process, after what `custom_imports=['vitdense']` does and nothing else."""
    import subprocess

    pytest.importorskip(scope)
    code = (
        f"import vitdense; from {scope}.registry import MODELS; "
        "m = MODELS.build(dict(type='vitdense.Swin', arch=dict(embed_dims=8, depths=(1, 1), num_heads=(1, 1)), "
        "out_indices=(0, 1))); print(type(m).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repo)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("vitdense.models.swin.model")
