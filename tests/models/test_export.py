"""Exported programs equal the models at other sizes and batches than in the export."""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from contract_rows import with_random_norms
from test_contract import BACKBONES, WITH_ADAPTERS, every_but_slow

from cost import CostCounter
from vitdense import Swin
from vitdense.export.onnx import save_onnx
from vitdense.export.program import MIN_SIDE, export_program, largest_error, save_program
from vitdense.runtime import open_onnxruntime

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

EXAMPLE = (2, 3, 64, 96)
UNSEEN = [(1, 97, 131), (3, 65, 200), (1, MIN_SIDE, MIN_SIDE)]
BRANCHES = {"If", "Loop", "Tile", "Scan", "NonZero"}  # what runtimes do not take, or take slowly
OF_SIZES = {"Shape", "Range", "Resize", "Cast", "Less", "GreaterOrEqual", "Or", "Clip"}  # what decides on a size
# One of each family of the papers; `vit` and `resnet` are exported for onnxruntime below, the others are slow.
ROWS = ("swin", "swin_v2", "mvit", "vit, windows, relative positions")
every_quick = every_but_slow("vit", "resnet")  # the others take minutes


def operators(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def cast_types(path):
    return {node.attribute[0].i for node in onnx.load(path).graph.node if node.op_type == "Cast"}


def image_of(shape):
    batch, *size = shape
    return torch.randn(batch, 3, *size)


@pytest.mark.long
@every_but_slow(*ROWS, models=WITH_ADAPTERS)
def test_one_program_serves_all_sizes_and_batches(make):
    model = make.shallow()().eval()
    program = export_program(model, torch.randn(EXAMPLE)).module()
    with torch.no_grad():
        for shape in UNSEEN:
            image = image_of(shape)
            assert largest_error(program(image), model(image)) < 1e-5, shape


@pytest.mark.slow
def test_low_rank_updates(tmp_path):
    make = replace(BACKBONES["vit"], options={**BACKBONES["vit"].options, "finetune": "lora"})
    test_onnx_and_the_program_equal_the_model_at_other_sizes_and_batches(make, tmp_path)


@every_quick
@pytest.mark.long
def test_onnx_and_the_program_equal_the_model_at_other_sizes_and_batches(make, tmp_path):
    model = with_random_norms(make.shallow()()).eval()  # equal norms of one map would become one
    path = tmp_path / "model.onnx"
    exported = export_program(model, torch.randn(EXAMPLE))
    save_onnx(exported, path, metadata={"key": "value"})
    program = exported.module()
    with torch.no_grad():
        for shape in UNSEEN:
            image = image_of(shape)
            want = model(image)
            assert largest_error(program(image), want) < 1e-5, shape
            assert largest_error(open_onnxruntime(path).run(image.numpy()), want) < 1e-4, shape
        with CostCounter(model) as counter:
            model(image)
    found, file = operators(path), onnx.load(path)
    assert not found.keys() & BRANCHES
    num_norms = counter.calls["aten.native_layer_norm"]
    assert found["LayerNormalization"] == num_norms
    assert num_norms > 0 or model.family in ("resnet", "sasa")  # which have none
    assert onnx.TensorProto.DOUBLE not in cast_types(path)
    dims = [dim.dim_param or dim.dim_value for dim in file.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["batch", 3, "height", "width"]
    assert {entry.key: entry.value for entry in file.metadata_props} == {"key": "value"}


@every_but_slow("vit")
@pytest.mark.long
def test_onnx_of_one_size_has_constants_for_all_that_sizes_decide(make, tmp_path):
    model, path, image = make.shallow()().eval(), tmp_path / "model.onnx", image_of((1, 97, 131))
    save_onnx(export_program(model, image, dynamic=False), path)
    with torch.no_grad():
        assert largest_error(open_onnxruntime(path).run(image.numpy()), model(image)) < 1e-4
    assert not operators(path).keys() & (BRANCHES | OF_SIZES)


@every_but_slow("vit")
@pytest.mark.long
def test_onnx_in_half_precision(make, tmp_path):
    model, path, image = make.shallow()().eval(), tmp_path / "model.onnx", image_of((1, 97, 131))
    half = copy.deepcopy(model).half()
    save_onnx(export_program(half, torch.zeros(EXAMPLE, dtype=torch.float16)), path)
    with torch.no_grad():
        assert largest_error(open_onnxruntime(path).run(image.half().numpy()), model(image)) < 1e-2
    assert onnx.TensorProto.DOUBLE not in cast_types(path)


@pytest.mark.long
def test_a_saved_program_runs_without_its_model(tmp_path):
    model = Swin({"embed_dims": 8, "depths": (2,), "num_heads": (1,)}, out_indices=(0,)).eval()
    save_program(export_program(model, torch.randn(EXAMPLE)), tmp_path / "model.pt2", {"key": "value"})
    read = {"key": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=read).module()
    image = image_of((1, 70, 50))
    assert largest_error(program(image), model(image)) < 1e-5
    assert read == {"key": "value"}


def test_largest_error_is_nan_for_values_that_are_not_finite():
    ones = torch.ones(3)
    assert largest_error([ones, 3 * ones], [ones, 2 * ones]) == pytest.approx(0.5)
    bad = torch.tensor([1.0, float("nan"), 1.0])
    assert not largest_error([bad, ones], [ones, ones]) <= 1
    assert not largest_error([ones / 0], [ones]) <= 1


def test_refused():
    model = Swin({"embed_dims": 8, "depths": (1,), "num_heads": (1,)}, out_indices=(0,))
    with pytest.raises(ValueError, match="eval"):
        export_program(model, torch.zeros(EXAMPLE))
    with pytest.raises(ValueError, match=f"at least {MIN_SIDE}"):
        export_program(model.eval(), torch.zeros(1, 3, 64, MIN_SIDE - 1))


def test_a_program_that_torch_cannot_make_for_all_sizes_names_the_option():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x.view(2, 3, x.shape[2], x.shape[3])

    with pytest.raises(ValueError, match="--static"):
        export_program(Fixed().eval(), torch.zeros(2, 3, 64, 64))
