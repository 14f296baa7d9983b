import copy
import re
from functools import partial

import pytest
import torch
from conftest import assert_same_tensors
from safetensors.torch import save_file

from vitdense import MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.fit import match_exactly
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.errors import OptionError
from vitdense.layers.resize import resize_bias_table, resize_relative_position

NANO = {"embed_dims": 8, "depths": (1, 2), "num_heads": (1, 2)}


def make(**options):
    return Swin(NANO, **{"out_indices": (0, 1), "window_size": 4, **options})


def official(model, norms=False):
    state = {key: value.clone() for key, value in model.state_dict().items() if norms or not key.startswith("norm")}
    if not norms:
        state |= {"norm.weight": torch.ones(16), "head.weight": torch.ones(10, 16)}
    state = convert(state, "official").state
    if not norms:
        state["layers.1.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    return state


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "backbone.",
        "backbone.bottom_up.",
        "module.",
        "_orig_mod.",
        "_orig_mod.module.",
        "module._orig_mod.backbone.",
    ],
)
def test_classification_checkpoint_in_any_wrapper(tmp_path, wrapper, prefix):
    source, target = make(), make()
    state = {prefix + key: value for key, value in official(source).items()}
    if prefix.startswith("backbone"):
        state["roi_head.fc.weight"] = torch.ones(1)
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "c.pth")
    report = load_pretrained(target, tmp_path / "c.pth")
    assert report.scheme == "official"
    assert sorted(report.kept_at_init) == ["norm0.bias", "norm0.weight", "norm1.bias", "norm1.weight"]
    assert len(report.ignored) == 6  # norm, head, a mask and three indices
    assert report.resized == {}
    filled = sum(v.numel() for k, v in source.state_dict().items() if not k.startswith("norm"))
    assert report.share == filled / sum(v.numel() for v in source.state_dict().values())
    for key, value in source.state_dict().items():
        if not key.startswith("norm"):
            assert torch.equal(target.state_dict()[key], value), key


def pretrained(path):
    return {"type": "Pretrained", "checkpoint": str(path)}


@pytest.mark.parametrize("init_cfg_of", [str, lambda path: path, pretrained, lambda path: [pretrained(path)]])
def test_own_checkpoints_as_safetensors_through_init_cfg(tmp_path, init_cfg_of):
    source, path = make(), tmp_path / "own.safetensors"
    torch.nn.init.normal_(source.norm1.weight)
    save_file(source.state_dict(), path)
    target = make(init_cfg=init_cfg_of(path))
    assert not torch.equal(target.norm1.weight, source.norm1.weight)
    target.init_weights()
    assert_same_tensors(target.state_dict(), source.state_dict())
    with pytest.raises(ValueError, match="give it alone"):
        make(init_cfg=[pretrained(path), {"type": "Xavier", "layer": "Linear"}]).init_weights()


def test_initialisers_of_mmengine_are_kept():
    pytest.importorskip("vitdense.mm.registry")
    drawn = make(init_cfg={"type": "Constant", "layer": "Linear", "val": 0.5})
    drawn.init_weights()
    assert set(drawn.stages[0].blocks[0].mlp.fc1.weight.flatten().tolist()) == {0.5}


@pytest.mark.parametrize(
    ("init_cfg", "message"),
    [
        ({"type": "Pretrained", "checkpoint": "x.pth", "strict": False}, "strict"),
        ({"type": "Pretrained", "chekpoint": "x.pth"}, "chekpoint=.*checkpoint"),
        ({"type": "Pretrained", "prefix": "backbone."}, "checkpoint"),
        ({"type": "Pretrained", "checkpoint": None}, "checkpoint"),
        ({"checkpoint": "x.pth"}, "type"),
        ([{"type": "Pretrained"}], "checkpoint"),
    ],
)
def test_init_cfg_is_checked_when_a_model_is_made(init_cfg, message):
    with pytest.raises(OptionError, match=message):
        make(init_cfg=init_cfg)


def test_norms_of_other_outputs_are_ignored_but_a_missing_one_is_an_error():
    dense = official(make(), norms=True)
    assert load_pretrained(make(out_indices=(1,)), dense).share == 1
    with pytest.raises(CheckpointMismatchError, match=r"norm0\.weight"):
        load_pretrained(make(), {k: v for k, v in dense.items() if not k.startswith("norm0")})


def test_bias_tables_of_another_window_are_resized():
    source = make(window_size=4)
    key = "stages.1.blocks.1.attn.bias.relative_position_bias_table"
    for rule in ("bicubic", "timm"):
        target = make(window_size=(6, 5))
        report = load_pretrained(target, official(source), resize=rule)
        assert set(report.resized.values()) == {((7, 7, 1), (11, 9, 1)), ((7, 7, 2), (11, 9, 2))}
        assert torch.equal(target.state_dict()[key], resize_bias_table(source.state_dict()[key], (6, 5), rule))
    with pytest.raises(ValueError, match="resize: got 'nearest'"):
        load_pretrained(make(window_size=6), official(source), resize="nearest")


def test_own_checkpoint_of_a_transposed_window_is_resized():
    """Flat tables of a 4x6 and of a 6x4 window have the same number of rows."""
    source, target = make(window_size=(4, 6)), make(window_size=(6, 4))
    assert len(load_pretrained(target, source.state_dict()).resized) == 3


def test_absolute_positions_of_another_image_size_are_resized():
    source = make(absolute_position=True, pretrain_img_size=64)
    target = make(absolute_position=True, pretrain_img_size=(48, 80))
    report = load_pretrained(target, convert(source.state_dict(), "official").state)
    assert report.resized == {"absolute_pos_embed.table": ((1, 16, 16, 8), (1, 12, 20, 8))}


MVIT = {"embed_dims": 8, "depths": (1, 2), "num_heads": 1}


def make_mvit(image=64, **arch):
    return MViT({**MVIT, **arch}, out_indices=(0, 1), pretrain_img_size=image)


@pytest.mark.parametrize("rule", ["bicubic", "timm"])
def test_decomposed_tables_are_always_resized_linearly(rule):
    source, target = make_mvit(), make_mvit(image=(96, 64))
    report = load_pretrained(target, source.state_dict(), resize=rule)
    blocks = ("stages.0.blocks.0", "stages.1.blocks.0", "stages.1.blocks.1")
    assert set(report.resized) == {f"{block}.attn.bias.rel_pos_h" for block in blocks}
    for key, (old, new) in report.resized.items():
        assert old[0] < new[0]
        assert torch.equal(target.state_dict()[key], resize_relative_position(source.state_dict()[key], new[0]))
    assert report.share == 1


def released_mvit_v1(dim=8, first=(1, 3, 6), depth=8, image=64):
    """Names and shapes of SlowFast's image model MVIT_B_16_CONV, written down from its code and config, smaller.

    Its pooling is over one frame. Width doubles in the MLP of the block before the map shrinks.
    """
    state = {"cls_token": (1, 1, dim), "pos_embed": (1, 1 + (image // 4) ** 2, dim)}
    state |= {"patch_embed.proj.weight": (dim, 3, 7, 7), "patch_embed.proj.bias": (dim,)}
    head, width = dim, dim
    for i in range(depth):
        out = 2 * width if i + 1 in first else width
        linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        linear |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (out, 4 * width)}
        linear |= {"proj": (out, width)} if out != width else {}
        block = {f"{name}.weight": shape for name, shape in linear.items()}
        block |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
        block |= {f"{norm}.{part}": (width,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
        for name in "qkv" if i in first else "kv":
            block |= {f"attn.pool_{name}.weight": (head, 1, 1, 3, 3)}
            block |= {f"attn.norm_{name}.{part}": (head,) for part in ("weight", "bias")}
        state |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
        width = out
    state |= {"norm.weight": (width,), "norm.bias": (width,)}
    state |= {"head.projection.weight": (10, width), "head.projection.bias": (10,)}
    return {key: torch.randn(shape) for key, shape in state.items()}


V1_NANO = {"embed_dims": 8, "depths": (1, 2, 3, 2), "num_heads": 1, "growth": "mlp", "pool_all_queries": False}
V1_NANO |= {"relative_position": False, "absolute_position": True, "residual_pooling": False}


def test_released_mvit_v1_loads_exactly():
    state = released_mvit_v1()
    model = MViT(V1_NANO, pretrain_img_size=64)
    report = load_pretrained(model, {"model_state": state})
    assert (report.scheme, report.kept_at_init) == (
        "official",
        [f"norm{i}.{x}" for i in range(4) for x in ("weight", "bias")],
    )
    assert set(report.ignored) == {
        *("tokens.cls_token", "tokens.cls_position", "norm.weight", "norm.bias", "head.weight", "head.bias")
    }
    assert not report.resized
    assert torch.equal(model.stages[1].blocks[0].attn.pool_q.weight, state["blocks.1.attn.pool_q.weight"][:, :, 0])
    assert torch.equal(model.stages[3].blocks[1].attn.pool_v.weight, state["blocks.7.attn.pool_v.weight"][:, :, 0])
    assert torch.equal(model.stages[0].blocks[0].proj.weight, state["blocks.0.proj.weight"])
    assert torch.equal(model.absolute_pos_embed.table.flatten(1, 2), state["pos_embed"][:, 1:])


VIT = {"embed_dims": 192, "depth": 1, "num_heads": 3}


def make_vit(image=64, arch=(), **options):
    return ViT({**VIT, **dict(arch)}, pretrain_img_size=image, **{"out_norm": "none", **options})


DEIT3 = ({"token_position": False, "layer_scale": 1e-4}, {})


def test_tokens_are_ignored_and_missing_relative_positions_kept_at_init():
    """As ViTDet is started from MAE's pretraining."""
    source = make_vit()
    extra = {"norm.weight": torch.ones(192), "mask_token": torch.ones(1, 1, 8), "decoder_pred.bias": torch.ones(768)}
    state = convert(source.state_dict() | extra, "official").state
    options = {"relative_position": True, "window_size": 2, "img_size": 64, "out_norm": "each"}
    target = make_vit(**options)
    report = load_pretrained(target, {"model": state})
    assert set(report.ignored) == {"tokens.cls_token", "tokens.cls_position", *extra}
    assert report.kept_at_init == [f"blocks.0.attn.bias.rel_pos_{axis}" for axis in "hw"] + [
        "norm0.weight",
        "norm0.bias",
    ]
    own = {key: value for key, value in target.state_dict().items() if not key.startswith("norm")}
    own.pop("blocks.0.attn.bias.rel_pos_w")
    with pytest.raises(CheckpointMismatchError, match=r"missing keys \(1\): blocks\.0\.attn\.bias\.rel_pos_w"):
        load_pretrained(make_vit(**options), own)


def test_positions_and_relative_positions_of_a_vit_are_resized():
    options = {"relative_position": True}
    source, target = make_vit(img_size=64, **options), make_vit(image=(96, 80), img_size=96, **options)
    report = load_pretrained(target, source.state_dict())
    tables = {f"blocks.0.attn.bias.rel_pos_{axis}": ((7, 64), (11, 64)) for axis in "hw"}
    assert report.resized == {"absolute_pos_embed.table": ((1, 4, 4, 192), (1, 6, 5, 192)), **tables}


def test_flat_position_embedding_is_square():
    source, square = make_vit(image=(64, 256)), make_vit(image=128)
    with pytest.raises(CheckpointMismatchError, match=r"\(1, 4, 16, 192\)"):
        convert(source.state_dict(), "official")
    state, table = convert(square.state_dict(), "official").state, "absolute_pos_embed.table"
    # 65 rows: 8x8 and a token, not 4x16 and a token.
    report = load_pretrained(make_vit(image=(64, 256)), state)
    assert report.resized == {table: ((1, 8, 8, 192), (1, 4, 16, 192))}
    # With our names a table has its grid.
    assert load_pretrained(make_vit(image=(64, 256)), source.state_dict()).resized == {}


def test_keep_classifier_knows_the_plain_head_of_mmpretrain():
    state = convert(make_vit().state_dict(), "mmpretrain").state | {"head.fc.weight": torch.ones(10, 192)}
    assert all(name.startswith(("backbone.", "head")) for name in state)
    report = load_pretrained(make_vit(), state, keep_classifier=True)
    assert torch.equal(report.classifier["head.weight"], state["head.fc.weight"])


HEAD = {"norm.weight": (192,), "fc_norm.bias": (192,), "head.bias": (3,), "head_dist.bias": (3,)}


@pytest.mark.parametrize("keep", [False, True])
def test_keep_classifier_keeps_it_in_the_report(tmp_path, keep):
    extra = {key: torch.randn(shape) for key, shape in HEAD.items()}
    others = {"mask_token": torch.ones(1, 1, 8)}
    file = file_of(convert(make_vit().state_dict() | extra | others, "official").state, tmp_path / "c.pth")
    target = make_vit(init_cfg={"type": "Pretrained", "checkpoint": str(file), "keep_classifier": keep})
    target.init_weights()
    report = target.load_report
    assert set(report.ignored) == {*extra, *others}
    assert_same_tensors(report.classifier, extra if keep else {})
    assert "classifier=" not in repr(report)


def test_report_names_every_tensor():
    target = make(window_size=5)
    report = load_pretrained(target, {"model": official(make())})
    assert str(report) == (
        f"state dict (official names): {len(target.state_dict()) - 4} tensors loaded (3 resized), 6 ignored, "
        f"4 kept at initialisation; {100 * report.share:.2f} % of the parameters loaded"
    )
    lines = report.details().splitlines()
    table = "stages.0.blocks.0.attn.bias.relative_position_bias_table"
    assert f"  resized {table}: [7, 7, 1] -> [9, 9, 1]" in lines
    assert {"  ignored head.weight", "  kept at initialisation norm0.weight", f"  loaded {table}"} <= set(lines)


def file_of(state, path):
    torch.save({"model": state}, path)
    return path


BLOCK = "layers.1.blocks.0."
TABLE = BLOCK + "attn.relative_position_bias_table"
NUMBER = torch.ones(1)
WRONG = {  # how the file is made, the options it is loaded with, and what the error names
    "no checkpoint": (lambda s, p: p.write_bytes(b"hello world, I am a text") and p, {}, "b'hello world"),
    "wrong family": (
        lambda s, p: file_of(SwinV2(NANO, out_indices=(0, 1)).state_dict(), p),
        {},
        "expected a checkpoint of the swin family, got one of swin_v2",
    ),
    "wrong prefix": (file_of, {"prefix": "encoder"}, r"'encoder\.'"),
    "wrong hash": (file_of, {"sha256": "0" * 8}, "SHA-256 .* expected 00000000"),
    "table not square": (
        lambda s, p: file_of(s | {TABLE: torch.ones(77, 2)}, p),
        {},
        r"relative_position_bias_table has shape \(77, 2\)",
    ),
    "no tensors": (lambda s, p: file_of({}, p), {}, "no tensors by name"),
    "many tensors": (lambda s, p: file_of(dict.fromkeys(map(str, range(20000)), NUMBER), p), {}, "got 20000 tensors"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_file_is_refused_and_the_model_unchanged(what, tmp_path):
    make_file, options, message = WRONG[what]
    checkpoint = make_file(official(make()), tmp_path / "file.pth")
    target = make(init_cfg={"type": "Pretrained", "checkpoint": str(checkpoint), **options})
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(CheckpointMismatchError, match=message) as raised:
        target.init_weights()
    assert len(str(raised.value)) < 3000
    assert_same_tensors(target.state_dict(), before)
    assert target.load_report is None


ODD = {  # tensors in the place of a norm's weight: whether loading, and conversion, take them
    "half precision": (lambda x: x.half(), True, True),
    "too large for float32": (lambda x: x.double().fill_(1e300), False, True),
    "integers": (lambda x: x.long(), False, False),
    "complex": (lambda x: x.to(torch.complex64), False, False),
    "NaN": (lambda x: x.index_fill(0, torch.tensor(0), torch.nan), False, False),
    "infinity": (lambda x: x.index_fill(0, torch.tensor(0), torch.inf), False, False),
    "sparse": (lambda x: x.to_sparse(), False, False),
    "on the meta device": (lambda x: x.to("meta"), False, False),
    "quantised": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), False, False),
}


@pytest.mark.filterwarnings("ignore")  # torch deprecates quantised ones
@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_are_no_plain_numbers_are_refused(kind):
    make_odd, loads, converts = ODD[kind]
    key, state, target = BLOCK + "norm1.weight", official(make()), make()
    state |= {key: make_odd(state[key]), 0: torch.ones(1)}  # 0 is no name
    before = copy.deepcopy(target.state_dict())
    for act, is_right in ((partial(load_pretrained, target), loads), (partial(convert, to="timm"), converts)):
        if is_right:
            act(state)
            continue
        with pytest.raises(CheckpointMismatchError, match=r"(layers|stages)\.1\.blocks\.0\.norm1\.weight"):
            act(state)
    if not loads:
        assert_same_tensors(target.state_dict(), before)


def test_swin_v2_refuses_weights_of_another_pretraining_window():
    """Only the buffers of a checkpoint tell it; the parameters fit any."""
    arch = {"embed_dims": 8, "depths": (1, 2), "num_heads": (1, 2)}
    options = {"out_indices": (0, 1), "window_size": 8}
    state = SwinV2(arch, **options).state_dict()
    theirs = convert(state, "official", windows=[8], pretrained_windows=[8, 4]).state
    with pytest.raises(
        CheckpointMismatchError, match=r"4x4 in stage 1, the model expects 8x8.*pretrained_window_sizes"
    ):
        load_pretrained(SwinV2(arch, **options), theirs)
    assert load_pretrained(SwinV2(arch, pretrained_window_sizes=(8, 4), **options), theirs).share == 1
    wider = SwinV2(arch, out_indices=(0, 1), window_size=(16, 12), pretrained_window_sizes=(8, 4))
    assert load_pretrained(wider, theirs).share == 1


def test_match_exactly_ignores_only_named_keys():
    targets = make().state_dict()
    assert match_exactly(targets, targets).keys() == targets.keys()
    broken = {**targets, "norm1.weight": torch.ones(3), "extra": torch.ones(1)}
    broken.pop("norm0.bias")
    message = (
        r"Fix it: norm0\.bias\. missing keys \(1\): norm0\.bias; unexpected keys \(1\): extra; "
        r"size mismatch \(1\): norm1\.weight \(3,\), expected \(16,\)$"
    )
    with pytest.raises(CheckpointMismatchError, match=message):
        match_exactly(targets, broken, advise=lambda refused, _: f"Fix it: {min(refused - {'extra'})}. ")
    kept = match_exactly(targets, broken, fresh=[r"norm\d\..*", "extra"])
    assert kept.keys() == {key for key in targets if not re.match(r"norm\d\.", key)}


class Detector(torch.nn.Module):
    def __init__(self, backbone=None, **options):
        super().__init__()
        self.backbone = make(**options) if backbone is None else backbone
        self.head = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("scheme", ["vitdense", "official", "mmdet"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_whole_detector_loads_from_any_scheme(scheme, prefix):
    source, target = Detector(), Detector(window_size=5)
    backbone = {f"backbone.{key}": value for key, value in source.backbone.state_dict().items()}
    heads = {f"head.{key}": value for key, value in source.head.state_dict().items()}
    checkpoint = {prefix + key: value for key, value in convert(backbone | heads, scheme).state.items()}
    if scheme == "official":
        assert f"{prefix}backbone.layers.0.blocks.0.norm1.weight" in checkpoint
    state, report = fit_whole(target, {"state_dict": checkpoint, "meta": {}})
    assert state.keys() == target.state_dict().keys()
    assert report.scheme == scheme
    assert report.share == 1
    assert len(report.resized) == 3
    assert torch.equal(state["backbone.norm1.weight"], source.backbone.norm1.weight)
    assert torch.equal(state["head.weight"], source.head.weight)
    with pytest.raises(CheckpointMismatchError, match=r"--fresh 'head\\\.bias'.*missing keys \(1\): head\.bias"):
        fit_whole(target, {key: value for key, value in checkpoint.items() if not key.endswith("head.bias")})
    _, report = fit_whole(
        target, {key: v for key, v in checkpoint.items() if not key.endswith("head.bias")}, fresh=[r"head\..*"]
    )
    assert report.kept_at_init == ["head.weight", "head.bias"]
    with pytest.raises(ValueError, match=r"fresh.*heads"):
        fit_whole(target, checkpoint, fresh=["heads.*"])


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_module_wrappers_are_removed_anywhere_in_a_key(wrapper):
    source, target = Detector(), Detector()
    state = {
        key.replace("backbone.", f"{wrapper}.backbone.{wrapper}.").replace("blocks.0.", f"blocks.0.{wrapper}."): value
        for key, value in source.state_dict().items()
    }
    got, report = fit_whole(target, {f"module.{key}": value for key, value in state.items()})
    assert report.share == 1
    assert_same_tensors(got, source.state_dict())
    twice = state | {"head.weight": torch.ones(2, 2), f"head.{wrapper}.weight": torch.ones(2, 2)}
    with pytest.raises(CheckpointMismatchError, match=wrapper):
        fit_whole(target, twice)


CLASS_TOKEN = ["tokens.cls_token", "tokens.cls_position"]
UNUSED_PARAMETERS = {  # source model, its scheme, target model, and the unexpected keys
    "the final norm of mmseg": (make_vit(out_norm="final"), "mmseg", make_vit(), ["norm.weight", "norm.bias"]),
    "output norms": (make_vit(out_norm="each"), "vitdense", make_vit(), ["norm0.weight", "norm0.bias"]),
    "the norm of one output": (make(), "vitdense", make(out_indices=(1,)), ["norm0.weight", "norm0.bias"]),
    "the same by other names": (make(), "mmdet", make(out_indices=(1,)), ["norm0.weight", "norm0.bias"]),
    "the class token": (make_vit(), "vitdense", make_vit(window_size=2), CLASS_TOKEN),
    "the same by option": (make_vit(), "vitdense", make_vit(class_token=False), CLASS_TOKEN),
    "the same without position": (make_vit(arch=DEIT3[0]), "timm", make_vit(arch={"layer_scale": 1.0}, window_size=2),
                                  CLASS_TOKEN[:1]),
}  # fmt: skip


def whole(source, scheme):
    part = {f"backbone.{key}": value for key, value in convert(source.state_dict(), scheme).backbone.items()}
    return part | {f"head.{key}": value for key, value in Detector(source).head.state_dict().items()}


@pytest.mark.parametrize("what", UNUSED_PARAMETERS)
def test_whole_model_with_unused_parameters_is_refused(what):
    source, scheme, target, left = UNUSED_PARAMETERS[what]
    state, model = whole(source, scheme), Detector(target)
    listed = ", ".join(f"backbone\\.{re.escape(key)}" for key in left)
    with pytest.raises(CheckpointMismatchError, match=rf"The backbone.*unexpected keys \({len(left)}\): {listed}$"):
        fit_whole(model, state)
    _, report = fit_whole(model, state, fresh=[rf"backbone\.{re.escape(key)}" for key in left])
    assert report.share == 1
    with pytest.raises(RuntimeError, match=rf'Unexpected key.*"backbone\.{re.escape(left[0])}"'):
        model.load_state_dict(state, strict=True)
    # A backbone alone may be of a classifier, or of a model with other outputs.
    assert set(left) <= set(load_pretrained(target, state, prefix="backbone").ignored)


def test_rebuilt_buffers_of_a_whole_model_are_ignored():
    swin = whole(make(), "mmdet") | {"backbone.stages.0.blocks.0.attn_mask": torch.zeros(4, 16, 16)}
    assert any(key.endswith("relative_position_index") for key in swin)
    options = {"relative_position": True, "window_size": 2, "img_size": 64}
    vitdet = convert(make_vit(**options).state_dict() | {"tokens.cls_position": torch.ones(1, 1, 192)}, "detectron2")
    assert vitdet.backbone["pos_embed"].shape == (1, 17, 192)  # of a token that it does not have
    vitdet = {f"backbone.{key}": value for key, value in vitdet.backbone.items()}
    vitdet |= {f"head.{key}": value for key, value in Detector().head.state_dict().items()}
    for model, state, number in ((Detector(), swin, 4), (Detector(make_vit(**options)), vitdet, 1)):
        _, report = fit_whole(model, state)
        assert (report.share, len(report.ignored)) == (1, number)
        model.load_state_dict(state, strict=True)


def test_stem_for_other_channels(tmp_path):
    """The formulas, on the weight of a file; all other tensors are the file's."""
    source = make()
    rgb, path = source.patch_embed.proj.weight.detach(), file_of(official(source), tmp_path / "a.pth")

    def stem(channels, number=5):
        target = make(in_channels=number, init_cfg=dict(type="Pretrained", checkpoint=str(path), channels=channels))
        target.init_weights()
        same = [k for k, v in source.state_dict().items() if torch.equal(target.state_dict()[k], v)]
        assert len(same) >= len(target.state_dict()) - 1
        changed = f"patch_embed.proj.weight: 3 -> {number} input channels by channels={channels!r}"
        assert changed in target.load_report.details()
        return target.patch_embed.proj.weight.detach()

    mean = stem("mean")
    assert mean.shape == (8, 5, 4, 4)
    torch.testing.assert_close(mean, rgb.mean(1, keepdim=True).repeat(1, 5, 1, 1) * 3 / 5)
    torch.testing.assert_close(mean.sum(1), rgb.sum(1))
    torch.testing.assert_close(stem("repeat"), rgb[:, [0, 1, 2, 0, 1]] * 3 / 5)
    torch.testing.assert_close(stem("repeat", 3), rgb)
    torch.testing.assert_close(stem("mean", 1), rgb.sum(1, keepdim=True))
    assert torch.equal(stem([2, 1, 0, 1, 2]), rgb[:, [2, 1, 0, 1, 2]])
    assert torch.equal(stem([2, 1, 0], 3), rgb[:, [2, 1, 0]])


@pytest.mark.parametrize("channels", ["zero", [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, -1], [0, 1, 2, 0.5], 3])
def test_channels_that_the_file_or_the_model_does_not_have(channels):
    target = make(in_channels=4)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError, match=r"channels: got .*each of the 4 channels .* 0 to 2"):
        load_pretrained(target, official(make()), channels=channels)
    assert_same_tensors(target.state_dict(), before)


def test_stem_of_a_file_that_is_no_convolution_is_a_size_mismatch():
    state = {**make().state_dict(), "patch_embed.proj.weight": torch.ones(8)}
    with pytest.raises(CheckpointMismatchError, match=r"size mismatch \(1\): patch_embed\.proj\.weight \(8,\)"):
        load_pretrained(make(), state)
    with pytest.raises(CheckpointMismatchError, match="size mismatch"):
        load_pretrained(make(), state, channels="mean")


@pytest.mark.parametrize("prefix", ["model.", "model.backbone.", "teacher.backbone.", "_orig_mod.net.", "module.net."])
def test_keys_under_one_prefix_load_by_the_option_that_the_error_names(prefix, tmp_path):
    state = make().state_dict()
    file = tmp_path / "last.ckpt"
    other = {"loss.weight": torch.ones(3)} if prefix.startswith("teacher") else {}
    torch.save({"state_dict": {prefix + key: x for key, x in state.items()} | other, "epoch": 3}, file)
    prefix = prefix.removeprefix("_orig_mod.").removeprefix("module.")
    with pytest.raises(CheckpointMismatchError, match=re.escape(f"prefix={prefix!r}")):
        make(init_cfg=str(file)).init_weights()
    loaded = make(init_cfg={"type": "Pretrained", "checkpoint": str(file), "prefix": prefix})
    loaded.init_weights()
    assert_same_tensors(loaded.state_dict(), state)


def test_every_prefix_of_equal_trunks_is_named():
    state = make().state_dict()
    both = {f"{who}.net.{key}": x for who in ("student", "ema") for key, x in state.items()}
    with pytest.raises(CheckpointMismatchError, match=r"'student\.net\.' or 'ema\.net\.'"):
        load_pretrained(make(), both)


@pytest.mark.parametrize(
    ("main", "average"),
    [
        ("model", "model_ema"),
        ("state_dict", "ema_state_dict"),
        ("state_dict", "state_dict_ema"),
        ("model", "ema_model"),
    ],
)
def test_an_average_in_a_file_is_named_and_loads_by_its_entry(main, average):
    raw, mean = make().state_dict(), {f"module.{key}": x + 1 for key, x in make().state_dict().items()}
    file = {main: raw, average: mean, "optimizer": {"state": {0: torch.ones(3)}}, "epoch": 3}
    model = make()
    assert f"entry={average!r}" in str(load_pretrained(model, file))
    assert torch.equal(model.state_dict()["patch_embed.proj.bias"], raw["patch_embed.proj.bias"])
    report = load_pretrained(model, file, entry=average)
    assert report.others == f"not loaded: {main}, with weights too (entry={main!r} loads them)"
    assert torch.equal(model.state_dict()["patch_embed.proj.bias"], mean["module.patch_embed.proj.bias"])
    assert "entry" not in str(load_pretrained(model, {main: raw, "meta": {}}))
    with pytest.raises(CheckpointMismatchError, match=average):
        load_pretrained(model, file, entry="ema")
