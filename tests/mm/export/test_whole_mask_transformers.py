"""Whole export of EoMT and PMT: one program for all sizes, and masks from its logits by NumPy."""

from types import SimpleNamespace

import pytest
import torch
from mmseg.structures import SegDataSample

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program, largest_error
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES
from vitdense.mm.export.tasks import MaskTransformer, Segmentor
from vitdense.mm.heads.mask_transformer.heads import PMTHead
from vitdense.models.vit.tokens import TokenViT
from vitdense.runtime import open_onnxruntime

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cfg():
    cfg = load_config("eomt_nano_shapes")
    cfg.model.backbone.arch.depth = 3
    return cfg


@pytest.mark.parametrize("to", ["onnx", pytest.param("pt2", marks=pytest.mark.slow)])
def test_the_command_compares_at_a_size_that_the_program_has_not_seen(cfg, to, tmp_path):
    state = build_model(cfg).state_dict()
    meta = {"dataset_meta": {"classes": (*CLASSES, "background")}}
    torch.save({"meta": meta, "state_dict": state}, tmp_path / "iter_1.pth")
    said = export(cfg, str(tmp_path / "iter_1.pth"), Wish(tmp_path / f"eomt.{to}", to))
    assert "[1, 3, 97, 131]" in said
    assert "classes [1, 20, 10], masks [1, 20, 26, 34]" in said


class Frozen(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"embed_dims": 24, "depth": 2, "num_heads": 2, "patch_size": 8, "rope": "dinov3", "registers": 2}
        sizes |= {"absolute_position": False}
        self.backbone = TokenViT(sizes, out_indices=(0, 1), out_norm="shared", frozen_stages="all")
        self.panoptic_head = PMTHead([24, 24], 2, num_queries=5, num_blocks=1, patch_size=8)
        self.data_preprocessor = SimpleNamespace(pad_size_divisor=1, pad_value=0)
        self.extract_feat = self.backbone


def test_pmt_at_two_sizes_and_batches(tmp_path):
    model = MaskTransformer(Frozen()).eval()
    program = export_program(model, torch.zeros(2, 3, 64, 96))
    save_onnx(program, tmp_path / "pmt.onnx", ["classes", "masks"])
    file = open_onnxruntime(tmp_path / "pmt.onnx")
    for b, h, w in ((1, 80, 160), (3, 128, 64)):
        image = torch.randn(b, 3, h, w)
        want = model(image)
        assert want["masks"].shape == (b, 5, h // 4, w // 4)
        for got in (program.module()(image), dict(zip(want, file.run(image.numpy())))):
            assert largest_error(got, want) < 1e-4


def test_a_segmentor_of_queries_is_padded_and_cut_as_mmseg_does():
    cfg = load_config("eomt_deit_t_camvid")
    arch = {"embed_dims": 24, "depth": 2, "num_heads": 2, "patch_size": 16}
    cfg.model.backbone.update(arch=arch, num_joint_blocks=1, init_cfg=None)
    cfg.model.decode_head.update(in_channels=[24], num_blocks=1)
    model = build_model(cfg).eval()
    image = torch.randn(1, 3, 70, 97)
    with torch.no_grad():
        got = Segmentor(model)(image)["logits"]
        sample = SegDataSample(metainfo={"ori_shape": (70, 97), "img_shape": (70, 97)})
        model.data_preprocessor._enable_normalize = model.data_preprocessor._channel_conversion = False
        want = model.test_step({"inputs": [image[0]], "data_samples": [sample]})[0].seg_logits.data
    torch.testing.assert_close(got[0], want)
