"""DINO and Mask2Former as programs."""

import onnx
import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention
from random_detector import assert_finds_as_predict
from torch import nn

from vitdense.export.onnx import save_onnx
from vitdense.export.program import SIZELESS_FORMS, _Answering, export_program, largest_error
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.export.detectors import fix
from vitdense.mm.export.tasks import Detector, MaskTransformer
from vitdense.runtime import open_onnxruntime

NOT_IN_PROGRAMS = {"If", "Loop", "Scan", "GridSample", "NonZero"}


def kinds(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def built(name):
    model = build_model(load_config(f"{name}_swin_nano_shapes")).eval()
    if name == "dino":
        nn.init.normal_(model.level_embed)  # until its weights are initialised, mmdet leaves it as memory was
    return model


@pytest.mark.long
def test_dino_finds_as_predict():
    assert_finds_as_predict(built("dino"))


def test_mask2former_without_sizes_in_tensors():
    model, image = built("mask2former"), torch.randn(2, 3, 96, 160)
    with torch.no_grad():
        classes, masks = model.panoptic_head(model.extract_feat(image), None)
        fix(model)
        fix(model)  # changes nothing
        got = MaskTransformer(model)(image)
        with _Answering(SIZELESS_FORMS):
            as_exported = MaskTransformer(model)(image)
    for outs in (got, as_exported):
        assert largest_error(outs, {"classes": classes[-1], "masks": masks[-1]}) < 1e-5


class Attended(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiScaleDeformableAttention(12, 2, num_levels=2, batch_first=True)
        nn.init.normal_(self.attention.sampling_offsets.weight)
        self.embed = nn.Linear(3, 12)

    def forward(self, image):
        maps = [image[..., ::stride, ::stride] for stride in (4, 8)]
        tokens = self.embed(torch.cat([x.flatten(2).mT for x in maps], 1))  # [B, N, C]
        sizes = [tuple(x.shape[2:]) for x in maps]
        points = tokens[..., :2].sigmoid()[:, :, None].expand(-1, -1, 2, -1)  # [B, N, levels, 2]
        if isinstance(self.attention, MultiScaleDeformableAttention):
            sizes = torch.tensor(sizes)
        return self.attention(tokens, value=tokens, reference_points=points, spatial_shapes=sizes)


@pytest.mark.long
def test_deformable_attention_as_a_program_of_all_sizes(tmp_path):
    model, image = Attended().eval(), torch.randn(3, 3, 77, 50)
    with torch.no_grad():
        want = model(image)
    fix(model)
    program = export_program(model, torch.zeros(2, 3, 64, 80))
    save_onnx(program, tmp_path / "attended.onnx", ["out"])
    assert not kinds(tmp_path / "attended.onnx") & NOT_IN_PROGRAMS
    for got in (program.module()(image), open_onnxruntime(tmp_path / "attended.onnx").run(image.numpy())[0]):
        assert largest_error(got, want) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dino", "mask2former"])
def test_a_program_of_all_sizes(name, tmp_path):
    model = built(name)
    fix(model)
    model = (Detector if name == "dino" else MaskTransformer)(model).eval()
    image = torch.randn(3, 3, 300, 277)
    with torch.no_grad():
        want = model(image)
    save_onnx(export_program(model, torch.zeros(2, 3, 320, 384)), tmp_path / "whole.onnx", list(want))
    assert not kinds(tmp_path / "whole.onnx") & NOT_IN_PROGRAMS
    assert largest_error(open_onnxruntime(tmp_path / "whole.onnx").run(image.numpy()), list(want.values())) < 1e-5
