"""Whole export of EoMT and PMT: one program for all sizes, and masks from its logits by NumPy."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")
pytest.importorskip("onnxscript")
from mmdet.models.seg_heads import MaskFormerFusionHead

from vitdense.inspect.export import export_program, largest_error, run_onnx, save_onnx
from vitdense.mm.cli.export import MaskTransformer, export
from vitdense.mm.config.load import build_model, load_config
from vitdense.mm.data.shapes import CLASSES
from vitdense.mm.heads.mask_transformer.heads import PMTHead
from vitdense.models.vit.tokens import TokenViT
from vitdense.runtime import masks_of_queries

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cfg():
    return load_config("eomt_nano_shapes")


@pytest.mark.parametrize("to", ["onnx", pytest.param("pt2", marks=pytest.mark.slow)])
def test_the_command_compares_at_a_size_that_the_program_has_not_seen(cfg, to, tmp_path):
    state = build_model(cfg).state_dict()
    meta = {"dataset_meta": {"classes": (*CLASSES, "background")}}
    torch.save({"meta": meta, "state_dict": state}, tmp_path / "iter_1.pth")
    said = export(cfg, str(tmp_path / "iter_1.pth"), tmp_path / f"eomt.{to}", to)
    assert "[1, 3, 97, 131]" in said
    assert "classes [1, 20, 10], masks [1, 20, 26, 34]" in said


class Frozen(torch.nn.Module):
    """A PMT of mm's form."""

    def __init__(self):
        super().__init__()
        sizes = {"embed_dims": 24, "depth": 2, "num_heads": 2, "patch_size": 8, "rope": "dinov3", "registers": 2}
        sizes |= {"absolute_position": False}
        self.backbone = TokenViT(sizes, out_indices=(0, 1), out_norm="shared", frozen_stages="all")
        self.panoptic_head = PMTHead([24, 24], 2, num_queries=5, num_blocks=1, patch_size=8)
        self.extract_feat = self.backbone


@pytest.mark.parametrize("sizes", [((1, 80, 160), (3, 128, 64))])
def test_pmt_at_two_sizes_and_batches(sizes, tmp_path):
    model = MaskTransformer(Frozen()).eval()
    program = export_program(model, torch.zeros(2, 3, 64, 96))
    save_onnx(program, tmp_path / "pmt.onnx", ["classes", "masks"])
    for b, h, w in sizes:
        image = torch.randn(b, 3, h, w)
        want = model(image)
        assert want["masks"].shape == (b, 5, h // 4, w // 4)
        for got in (program.module()(image), dict(zip(want, run_onnx(tmp_path / "pmt.onnx", image)))):
            assert largest_error(got, want) < 1e-4


def test_masks_of_queries_are_those_of_mmdets_fusion_head():
    classes, masks = torch.randn(30, 6) * 3, torch.randn(30, 8, 12)
    found, labels, scores = masks_of_queries(classes.numpy(), masks.numpy(), (32, 48), 0.4)
    assert 0 < len(found) < 30
    fusion = MaskFormerFusionHead(5, 0, test_cfg={"max_per_image": 150})
    large = F.interpolate(masks[None], (32, 48), mode="bilinear")[0]
    want = fusion.instance_postprocess(classes, large)
    for mask, label, score in zip(torch.from_numpy(found), labels, scores):
        near = (want.scores - float(score)).abs() + (want.labels != int(label))
        assert near.min() < 1e-5
        assert want.masks[near.argmin()].equal(mask)
    assert sorted(scores, reverse=True) == scores.tolist()
    best, label = classes.softmax(-1).max(-1)
    assert len(found) == int(((label < 5) & (best >= 0.4) & (large > 0).any(-1).any(-1)).sum())
