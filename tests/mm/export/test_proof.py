"""The proof beside a program tells what computes otherwise, from where on, and what commonly causes it."""

import shutil

import numpy as np
import pytest

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
import onnx
import test_exported_files

from graph_faults import set_attribute, set_entry, set_half, set_value
from vitdense import runtime
from vitdense.mm.cli.export import export

pytestmark = pytest.mark.long
KINDS = {"float32": {}, "photos": {"preprocessing": True}, "int8": {"precision": "int8"}}
folder = test_exported_files.folder


@pytest.fixture(scope="module")
def programs(folder):
    made = {}

    def program(kind="float32"):
        if kind not in made:
            made[kind] = folder / f"proof_{kind}.onnx"
            export(test_exported_files.make(folder), str(folder / "random.pth"), made[kind], "onnx", **KINDS[kind])
        return made[kind]

    return program


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_itself_is_the_same(programs, kind, capsys):
    assert runtime.main(["--verify", str(programs(kind))]) == 0
    blocks = 2 + (kind != "photos")  # of the ViT, and logits
    assert f"same: {blocks} blocks" in capsys.readouterr().out
    assert programs(kind).with_suffix(".proof").stat().st_size < 5e6


def first(kind, number):
    """The place of a node of a kind."""
    return lambda model: [i for i, node in enumerate(model.graph.node) if node.op_type == kind][number]


PARTS = "model.model."  # as the graph names them
FAULTS = {
    "mean": ((set_entry, "mean", lambda mean: mean[::-1]), "the file says mean"),
    "resize": ((set_entry, "resize", lambda rule: {**rule, "keep_ratio": False}), "the file says resize"),
    "classes": ((set_entry, "classes", lambda names: [*names[1:], names[0]]), "the file says classes"),
    "patches of BGR": (
        (set_value, f"{PARTS}backbone.patch_embed.proj.weight", lambda w: w[:, ::-1]),
        "backbone.blocks.0",
    ),
    "a transposed weight": ((set_value, "val_108", np.transpose), "backbone.blocks.1"),  # 24 x 24, of `attn.proj`
    "a position embedding": ((set_value, "permute_1", lambda x: np.roll(x, 1, 1)), "backbone.blocks.0"),
    "LayerNorm": ((set_attribute, first("LayerNormalization", 2), "epsilon", 1e-2), "backbone.blocks.1"),
    "Softmax": ((set_attribute, first("Softmax", 1), "axis", 2), "backbone.blocks.1"),
    "half precision": ((set_half, first("Conv", 0)), "backbone.blocks.0"),
    "a background slot that moves": (
        (set_value, f"{PARTS}decode_head.conv_seg.weight", lambda w: np.roll(w, 1, 0)),
        "the output logits",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(programs, tmp_path, fault, capsys):
    (change, place, *value), where = FAULTS[fault]
    path = tmp_path / "program.onnx"
    model = onnx.load(programs())
    change(model, place(model) if callable(place) else place, *value)
    onnx.save(model, path)
    shutil.copy(programs().with_suffix(".proof"), path.with_suffix(".proof"))
    assert runtime.main(["--verify", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "differs" in printed
    assert where in printed


def test_other_engines_are_reached_by_a_function(programs):
    program = programs()
    engine = runtime.open_onnxruntime(program, more=runtime.Proof(program.with_suffix(".proof")).inner)

    def run(batch, names):
        assert [*names] == engine.outputs
        return dict(zip(names, engine.run(batch)))

    assert runtime.verify(program, run=run)[0]
    same, text = runtime.verify(program, run=lambda *args: {k: v.astype(np.float16) for k, v in run(*args).items()})
    assert not same
    assert "ask it for float32" in text


def test_bad_files_are_one_line(programs, tmp_path, capsys):
    path = tmp_path / "program.onnx"
    shutil.copy(programs(), path)
    assert runtime.main(["--verify", str(path)]) == 2
    assert "export the program again" in capsys.readouterr().err
    whole = programs().with_suffix(".proof").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no zip", whole[:5000] + bytes(100) + whole[5100:]):
        path.with_suffix(".proof").write_bytes(content)
        assert runtime.main(["--verify", str(path)]) == 2
        assert "it is cut" in capsys.readouterr().err
    path.with_suffix(".proof").write_bytes(whole)
    for content in (path.read_bytes()[:-1000], b"", programs("photos").read_bytes()):
        path.write_bytes(content)
        assert runtime.main(["--verify", str(path)]) == 1
        assert "differs" in capsys.readouterr().out


def test_no_proof(folder, tmp_path):
    (tmp_path / "a.proof").write_text("of the program before")
    export(test_exported_files.make(folder), str(folder / "random.pth"), tmp_path / "a.onnx", "onnx", proof=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]
