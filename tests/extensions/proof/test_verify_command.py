"""The proof beside a program: what computes otherwise, from where on, and what commonly causes it."""

import json
import shutil
from argparse import Namespace
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from conftest import run_python
from linear_vit import make, save_random

from graph_faults import set_attribute, set_entry, set_half, set_value
from vitdense import runtime
from vitdense.extensions.proof import verify
from vitdense.extensions.proof.make import widened
from vitdense.extensions.proof.part import computed
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.samples import of_photos
from vitdense.mm.export.tasks import Part
from vitdense.mm.predictor import Predictor
from vitdense.runtime import BOUNDS, Output, compare_results

pytestmark = pytest.mark.long
KINDS = {"float32": {}, "photos": {}, "int8": {"precision": "int8"}}


@pytest.fixture(scope="module")
def export_of(tmp_path_factory):
    folder = save_random(tmp_path_factory.mktemp("exported"))

    @cache
    def made(kind):
        path = folder / f"{kind}.onnx"
        if kind == "photos":
            pytest.importorskip("vitdense.extensions.photos")
        wish, args = Wish(path, "onnx", **KINDS[kind]), Namespace(proof=True, with_preprocessing=kind == "photos")
        return path, export(make(folder), str(folder / "random.pth"), wish, args=args)

    return made


@pytest.fixture(scope="module")
def program(export_of):
    return export_of("float32")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_itself_is_the_same(export_of, kind, capsys):
    path, _ = export_of(kind)
    assert verify.main([str(path)]) == 0
    blocks = 2 + (kind != "photos")  # of the ViT, and logits
    out = capsys.readouterr().out
    assert f"same: {blocks} blocks" in out
    assert ("of the pixels in 3 images with another class" in out) == (kind == "int8")  # as at the export
    assert path.with_suffix(".proof").stat().st_size < 5e6


def first(kind, number):
    return lambda model: [i for i, node in enumerate(model.graph.node) if node.op_type == kind][number]


PATCHES, CLASSES_OF = "model.model.backbone.patch_embed.proj.weight", "model.model.decode_head.conv_seg.weight"
FAULTS = {
    "mean": ((set_entry, "mean", lambda mean: mean[::-1]), "the file says mean"),
    "resize": ((set_entry, "resize", lambda rule: {**rule, "keep_ratio": False}), "the file says resize"),
    "classes": ((set_entry, "classes", lambda names: [*names[1:], names[0]]), "the file says classes"),
    "patches of BGR": ((set_value, PATCHES, lambda w: w[:, ::-1]), "backbone.blocks.0"),
    "a transposed weight": ((set_value, "val_108", np.transpose), "backbone.blocks.1"),  # 24 x 24, of `attn.proj`
    "a position embedding": ((set_value, "permute_1", lambda x: np.roll(x, 1, 1)), "backbone.blocks.0"),
    "LayerNorm": ((set_attribute, first("LayerNormalization", 2), "epsilon", 1e-2), "backbone.blocks.1"),
    "Softmax": ((set_attribute, first("Softmax", 1), "axis", 2), "backbone.blocks.1"),
    "half precision": ((set_half, first("Conv", 0)), "backbone.blocks.0"),
    "a background slot that moves": ((set_value, CLASSES_OF, lambda w: np.roll(w, 1, 0)), "the output logits"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(program, tmp_path, fault, capsys):
    (change, place, *value), where = FAULTS[fault]
    path = tmp_path / "program.onnx"
    model = onnx.load(program)
    change(model, place(model) if callable(place) else place, *value)
    onnx.save(model, path)
    shutil.copy(program.with_suffix(".proof"), path.with_suffix(".proof"))
    assert verify.main([str(path)]) == 1
    printed = capsys.readouterr().out
    assert "differs" in printed
    assert where in printed


def test_int8_is_the_file_itself(export_of, tmp_path):
    """Its bounds are too wide to find another scale."""
    path, _ = export_of("int8")
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    node = next(node for node in model.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in weights)
    set_value(model, node.input[1], lambda scale: scale * np.float32(1.1))
    onnx.save(model, tmp_path / path.name)
    shutil.copy(path.with_suffix(".proof"), tmp_path)
    same, said = verify.verify(tmp_path / path.name)
    assert not same
    assert "another than was exported" in said


def test_other_engines_are_reached_by_a_function(program):
    engine = verify.opened(program, verify.Proof(program.with_suffix(".proof")).inner, "onnxruntime")

    def run(batch, names):
        assert [*names] == engine.outputs
        return dict(zip(names, engine.run(batch)))

    assert verify.verify(program, run=run)[0]
    same, text = verify.verify(program, run=lambda *args: {k: v.astype(np.float16) for k, v in run(*args).items()})
    assert not same
    assert "ask it for float32" in text


def test_a_torch_program_of_the_same_name_leaves_the_proof(program):
    proof, folder = program.with_suffix(".proof"), program.parent
    before, args = proof.read_bytes(), Namespace(proof=True, with_preprocessing=False)
    export(make(folder), str(folder / "random.pth"), Wish(program.with_suffix(".pt2"), "pt2"), args=args)
    assert proof.read_bytes() == before


def test_bad_files_are_one_line(program, export_of, tmp_path, capsys):
    path, proof = tmp_path / "program.onnx", tmp_path / "program.proof"

    def told(stream="err"):
        assert verify.main([str(path)]) == (2 if stream == "err" else 1)
        (line,) = getattr(capsys.readouterr(), stream).splitlines()
        return line

    assert "got no program" in told()
    with pytest.raises(ValueError, match="expected the ONNX file"):
        verify.verify(tmp_path / "program.xml")
    shutil.copy(program, path)
    assert "export the program again" in told()
    whole = program.with_suffix(".proof").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "other.npz", index=np.array("[1, 2]"))
    foreign = [(tmp_path / name).read_bytes() for name in ("array.npy", "other.npz")]
    for content in (whole[: len(whole) // 2], b"", b"no zip", whole[:5000] + bytes(100) + whole[5100:], *foreign):
        proof.write_bytes(content)
        assert "it is cut" in told()
    proof.write_bytes(whole)
    for content in (path.read_bytes()[:-1000], b"", export_of("int8")[0].read_bytes()):
        path.write_bytes(content)
        line = told("out")
        assert "differs" in line
        assert "another than was exported" in line
    model = onnx.load(program)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 32
    onnx.save(model, path)
    assert "differs: the engine fails on float32 [1, 3, 128, 107]" in told("out")


def write_proof(program, path, change):
    with np.load(program.with_suffix(".proof")) as file:
        arrays = dict(file)
    index = json.loads(str(arrays["index"]))
    change(index, arrays)
    arrays["index"] = np.array(json.dumps(index))
    with path.with_suffix(".proof").open("wb") as file:
        np.savez(file, **arrays)


def test_an_engine_that_lacks_an_op(program, tmp_path, capsys):
    """The file is as it was exported: that is told from a cut one."""
    path = tmp_path / "program.onnx"
    model = onnx.load(program)
    model.graph.node[first("Softmax", 0)(model)].op_type = "Softermax"
    onnx.save(model, path)
    write_proof(program, path, lambda index, arrays: index.update(checksum=verify.checksum_of(path)))
    assert verify.main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is as it was exported, but onnxruntime cannot run it" in line
    assert "Softermax" in line


DAMAGES = {  # further ones are drawn by tests/faults/test_own_files.py, field by field
    "bounds that are NaN": lambda index, arrays: index["bounds"].update(own=[float("nan")] * len(index["blocks"])),
    "places outside": lambda index, arrays: arrays.update(at0=arrays["at0"] + 10**9),
    "values that are NaN": lambda index, arrays: arrays.update(values0=arrays["values0"] * np.float32("nan")),
    "another size": lambda index, arrays: arrays.update(semantic0=arrays["semantic0"][1:]),
    "half a photo": lambda index, arrays: index.update(photos=1.5),
    "a limit of the next version": lambda index, arrays: index["limits"]["own"].update(novel=1),
    "bounds without an end": lambda index, arrays: index["bounds"].update(own=[float("inf")] * len(index["blocks"])),
    "classes in float": lambda index, arrays: arrays.update(semantic0=arrays["semantic0"] * 1.0),
    "boxes without scores": lambda index, arrays: arrays.update(boxes0=np.zeros((2, 4), np.float32)),
    "segments of fewer photos": lambda index, arrays: index["segments"].pop(),
    "an index that is none": lambda index, arrays: (index.clear(), index.update(a=1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_proof_is_not_an_answer(program, tmp_path, damage, capsys):
    path = tmp_path / "program.onnx"
    shutil.copy(program, path)
    write_proof(program, path, DAMAGES[damage])
    assert verify.main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "program.proof: it is cut, or no proof" in line


def test_two_copied_files_need_neither_torch_nor_the_package(program, tmp_path):
    for module in (runtime, verify):
        shutil.copy(module.__file__, tmp_path)
    code = (
        "import sys, runpy; sys.modules.update(dict.fromkeys(['torch', 'vitdense', 'mmengine']))\n"
        "sys.argv = sys.argv[1:]; sys.path.insert(0, '.'); runpy.run_path('verify.py', run_name='__main__')"
    )
    assert ": same: " in run_python(code, "verify.py", program, folder=tmp_path).stdout


def test_the_command_without_mm():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['mmengine', 'torch']));"
        "from vitdense.__main__ import main; sys.exit(main(['verify', 'no.onnx']))"
    )
    assert run_python(code, status=2).stderr.startswith("error: no.onnx: got no program")


def test_objects_are_in_the_pixels_of_a_photo_that_is_resized(tmp_path):
    cfg = load_config("rfdetr_nano_shapes")
    meta = {"dataset_meta": {"classes": CLASSES}}
    torch.save({"meta": meta, "state_dict": build_model(cfg).state_dict()}, tmp_path / "a.pth")
    predictor = Predictor(cfg, str(tmp_path / "a.pth"))
    photo = np.random.default_rng(0).integers(0, 256, (90, 250, 3), np.uint8)
    want, part = predictor(photo, score_thr=0.0), Part("", predictor, False, "", "float32")
    (sample,) = of_photos([photo], predictor, part.about)
    assert sample.image.shape[2:] != sample.size
    fix(predictor.model)
    found = computed(part.task, sample, part).found
    np.testing.assert_allclose(found.boxes, want.boxes, atol=0.1)


def test_bounds_of_lower_precision_follow_from_its_changes():
    def found(difference, lost):
        corner = np.arange(20)[:, None] * 100 + np.where(np.arange(20) < lost, 50, 0)[:, None]
        return Output(corner + np.float32([0, 0, 20, 20]), np.full(20, 0.9 - difference), np.zeros(20, int))

    def changed(share):
        return Output(semantic=(np.arange(100)[None] < 100 * share).astype(int))

    base = BOUNDS["float16"]
    assert widened([(found(0, 0), found(0, 0))], base).difference == base.difference
    bounds = widened([(found(0.04, 1), found(0, 0))], base)
    for got, fits in ((found(0.1, 1), True), (found(0.1, 4), True), (found(0.1, 5), False), (found(0.13, 1), False)):
        assert compare_results([(got, found(0, 0))], bounds)[0] == fits
    bounds = widened([(changed(0.04), changed(0))], base)
    assert [compare_results([(changed(x), changed(0))], bounds)[0] for x in (0.11, 0.13)] == [True, False]
