from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file

from vitdense.backbones import Swin
from vitdense.backbones.base import MMENGINE_GLOBALS
from vitdense.weights.load import CheckpointNotFoundError, load_pretrained, match_exactly, read
from vitdense.weights.rename import CheckpointMismatchError

NANO = {"embed_dims": 8, "depths": (1, 2), "num_heads": (1, 2)}


def make(**options):
    return Swin(NANO, **{"out_indices": (0, 1), "window_size": 4, **options})


def official(model, head=True, norms=False):
    """The model's weights as the authors' classification code would name them."""
    state = {}
    for key, value in model.state_dict().items():
        if key.startswith("norm") and not norms:
            continue
        state[key.replace("stages.", "layers.").replace("attn.bias.", "attn.")] = value.clone()
    state["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    state["layers.1.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    if head:
        state |= {"norm.weight": torch.ones(16), "head.weight": torch.ones(10, 16)}
    return state


def snapshot(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@pytest.mark.parametrize("prefix", ["", "backbone.", "backbone.bottom_up.", "module."])
def test_classification_checkpoint_in_any_wrapping(tmp_path, wrapper, prefix):
    source, target = make(), make()
    state = {prefix + key: value for key, value in official(source).items()}
    if prefix.startswith("backbone"):
        state["roi_head.fc.weight"] = torch.ones(1)
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "c.pth")
    report = load_pretrained(target, tmp_path / "c.pth")
    assert report.scheme == "official"
    assert sorted(report.fresh) == ["norm0.bias", "norm0.weight", "norm1.bias", "norm1.weight"]
    assert len(report.dropped) == 4
    assert report.resized == {}
    filled = sum(v.numel() for k, v in source.state_dict().items() if not k.startswith("norm"))
    assert report.share == filled / sum(v.numel() for v in source.state_dict().values())
    for key, value in source.state_dict().items():
        if not key.startswith("norm"):
            assert torch.equal(target.state_dict()[key], value), key


def test_own_checkpoints_as_safetensors_through_init_cfg(tmp_path):
    source = make()
    torch.nn.init.normal_(source.norm1.weight)
    save_file(source.state_dict(), tmp_path / "own.safetensors")
    target = make(init_cfg={"type": "Pretrained", "checkpoint": str(tmp_path / "own.safetensors")})
    assert not unchanged(target, source.state_dict())
    target.init_weights()
    assert unchanged(target, source.state_dict())


def test_init_cfg_may_be_a_list_but_pretrained_stands_alone(tmp_path):
    source = make()
    save_file(source.state_dict(), tmp_path / "own.safetensors")
    pretrained = {"type": "Pretrained", "checkpoint": str(tmp_path / "own.safetensors")}
    target = make(init_cfg=[pretrained])
    target.init_weights()
    assert unchanged(target, source.state_dict())
    with pytest.raises(ValueError, match="give it alone"):
        make(init_cfg=[pretrained, {"type": "Xavier", "layer": "Linear"}]).init_weights()
    drawn = make(init_cfg={"type": "Constant", "layer": "Linear", "val": 0.5})
    drawn.init_weights()
    assert set(drawn.stages[0].blocks[0].mlp.fc1.weight.flatten().tolist()) == {0.5}


def test_addresses_are_fetched_once_and_read_like_files(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    source = make()
    torch.save({"state_dict": source.state_dict(), "message_hub": HistoryBuffer()}, tmp_path / "served/own.pth")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/own.pth"
        target = make()
        assert load_pretrained(target, address, allow=MMENGINE_GLOBALS).share == 1
        with pytest.raises(CheckpointNotFoundError, match=r"other\.pth cannot be fetched.*give its path"):
            read(address.replace("own", "other"))
        server.shutdown()
    assert unchanged(target, source.state_dict())
    assert load_pretrained(make(), address, allow=MMENGINE_GLOBALS).share == 1  # from the cache: the server is gone
    assert [p.name for p in (tmp_path / "cache").rglob("*.pth")] == ["own.pth"]


def test_fewer_outputs_drop_their_norms_but_a_missing_one_is_an_error():
    dense = official(make(), norms=True)
    assert load_pretrained(make(out_indices=(1,)), dense).share == 1
    with pytest.raises(CheckpointMismatchError, match=r"norm0\.weight"):
        load_pretrained(make(), {k: v for k, v in dense.items() if not k.startswith("norm0")})


def test_tables_of_another_window_are_resized():
    source, target = make(window_size=4), make(window_size=(6, 5))
    report = load_pretrained(target, official(source))
    assert set(report.resized.values()) == {((49, 1), (99, 1)), ((49, 2), (99, 2))}
    from vitdense.layers.resize import resize_bias_table

    key = "stages.1.blocks.1.attn.bias.relative_position_bias_table"
    assert torch.equal(target.state_dict()[key], resize_bias_table(source.state_dict()[key], (4, 4), (6, 5)))


BLOCK = "layers.1.blocks.0."
TABLE = BLOCK + "attn.relative_position_bias_table"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop(BLOCK + "norm1.weight"), r"1 keys missing: stages\.1\.blocks\.0\.norm1\.weight"),
        (lambda s: s.update({"layers.2.blocks.0.norm1.weight": torch.ones(16)}), "1 left over"),
        (lambda s: s.update({"something.else": torch.ones(1)}), r"nearest is 'official'.*something\.else"),
        (lambda s: s.update({BLOCK + "mlp.fc1.weight": torch.ones(64, 8)}), r"\(64, 8\).*\(64, 16\)"),
        (lambda s: s.update({TABLE: torch.ones(50, 2)}), "50 rows, which no square window has"),
        (lambda s: s.update({TABLE: torch.ones(49, 4)}), r"\(49, 4\).*\(49, 2\)"),
        (lambda s: s.clear(), "no tensors"),
    ],
    ids=["missing", "extra block", "unknown key", "other shape", "no square table", "other heads", "empty"],
)
def test_what_does_not_fit_is_named_and_the_model_left_untouched(spoil, message):
    state, target = official(make()), make()
    spoil(state)
    before = snapshot(target)
    with pytest.raises(CheckpointMismatchError, match=message):
        load_pretrained(target, state)
    assert unchanged(target, before)


def test_a_wrong_prefix_is_an_error():
    with pytest.raises(CheckpointMismatchError, match=r"no key starts with 'encoder\.'"):
        load_pretrained(make(), official(make()), prefix="encoder")


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match=r"nowhere\.pth is not a file"):
        read(tmp_path / "nowhere.pth")
    with pytest.raises(CheckpointNotFoundError, match="not a file"):
        read(tmp_path)
    for name, content in {"empty.pth": b"", "text.pth": b"hello world", "text.safetensors": b"hello world"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointMismatchError, match=name):
            read(tmp_path / name)


class Malicious:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(1)}, "x": Malicious()}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match="without running code"):
        read(tmp_path / "bad.pth")


class Attribute:
    """Pickles as `getattr(owner, name)`."""

    def __init__(self, owner, name):
        self.call = (getattr, (owner, name))

    def __reduce__(self):
        return self.call


def test_mmengine_checkpoints_load_and_their_getattr_reaches_log_buffers_only(tmp_path):
    buffer = HistoryBuffer([1.0, 2.0], [1, 1])
    torch.save({"message_hub": buffer, "meta": {"seed": np.int64(3)}}, tmp_path / "run.pth")
    with pytest.raises(CheckpointMismatchError, match="without running code"):
        read(tmp_path / "run.pth")
    saved = read(tmp_path / "run.pth", allow=MMENGINE_GLOBALS)
    assert saved["message_hub"].mean() == 1.5
    torch.save({"x": Attribute(torch.Tensor, "numpy")}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match="asks for 'numpy'"):
        read(tmp_path / "bad.pth", allow=(*MMENGINE_GLOBALS, torch.Tensor))


def test_match_exactly_excuses_only_what_is_named():
    model = make()
    state = snapshot(model)
    assert match_exactly(model, {f"module.{k}": v for k, v in state.items()}).keys() == state.keys()
    broken = {**state, "norm1.weight": torch.ones(3), "extra": torch.ones(1)}
    broken.pop("norm0.bias")
    with pytest.raises(
        CheckpointMismatchError, match=r"1 missing: norm0\.bias; 1 left over: extra; 1 of another shape"
    ):
        match_exactly(model, broken)
    kept = match_exactly(model, broken, fresh=[r"norm\d\..*", "extra"])
    assert kept.keys() == state.keys() - {"norm0.bias", "norm1.weight"}
