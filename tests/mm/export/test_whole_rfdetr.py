"""RF-DETR as one program: all sizes and batches, without operators that runtimes get wrong."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from conftest import relative_error
from mmdet.structures import DetDataSample
from PIL import Image

from vitdense.export.onnx import save_onnx
from vitdense.export.program import export_program
from vitdense.layers.mask_branch import MASK_STRIDE
from vitdense.mm.cli.export import Wish, export
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.detection import ShapesDataset
from vitdense.mm.export import FORMATS
from vitdense.mm.export.tasks import Detector
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor
from vitdense.runtime import Program, cover, open_onnxruntime

OPTIONS = {"model.bbox_head.num_queries": 40, "model.test_cfg.max_per_img": 9, "model.bbox_head.with_masks": True}
LWDETR = {
    "model.backbone.arch.class_token": False,
    "model.backbone.arch.layer_scale": 0.1,
    "model.backbone.arch.qkv_bias": "no_key",
    "model.backbone.num_windows": 4,
    "model.backbone.out_norm": "none",
    "model.neck.norm": "batch",
    "model.data_preprocessor.pad_size_divisor": 64,
}


def make(options=OPTIONS):
    model = build_model(load_config("rfdetr_nano_shapes", options)).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():  # the start predicts one thing everywhere
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim < 2 else parameter[0].numel() ** -0.5)
    with torch.no_grad():  # masks of about half of the pixels
        model.bbox_head.masks.bias -= Detector(model)(torch.randn(1, 3, 128, 128))["masks"].median()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("options", "step"), [({}, 32), (LWDETR, 64)], ids=["rfdetr", "lwdetr"])
@torch.no_grad()
def test_program_finds_what_predict_finds_in_any_batch_and_size(options, step, tmp_path):
    model = make({**OPTIONS, **options})
    program = export_program(Detector(model).eval(), torch.zeros(2, 3, 96, 128))
    outputs = ["boxes", "scores", "labels", "masks"]
    save_onnx(program, tmp_path / "model.onnx", outputs)
    operators = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert not operators & {"GridSample", "If", "Loop", "NonMaxSuppression"}
    for batch, h, w in ((1, 128, 128), (3, 90, 150)):
        image = torch.randn(batch, 3, h, w)
        found = dict(zip(outputs, map(torch.as_tensor, open_onnxruntime(tmp_path / "model.onnx").run(image.numpy()))))
        padded = F.pad(image, (0, -w % step, 0, -h % step))
        shapes = {"img_shape": (h, w), "ori_shape": (h, w), "scale_factor": (1.0, 1.0)}
        wanted = model.predict(padded, [DetDataSample(metainfo=shapes) for _ in range(batch)], rescale=False)
        for i, sample in enumerate(wanted):
            want = sample.pred_instances
            assert found["labels"][i].equal(want.labels)
            assert relative_error(found["scores"][i], want.scores) < 1e-5
            assert relative_error(found["boxes"][i], want.bboxes) < 1e-5
            covered = [cover(mask.numpy(), MASK_STRIDE, (1, 1), (h, w)) for mask in found["masks"][i]]
            differ = torch.from_numpy(np.stack(covered) > 0) != want.masks
            assert 0.1 < want.masks.float().mean() < 0.9
            assert differ.float().mean() < 1e-4  # logits next to 0


@pytest.mark.slow
@pytest.mark.parametrize(("to", "size"), [*((to, (256, 256)) for to in FORMATS), ("onnx", (96, 192))])
def test_mask_recipe_from_its_checkpoint_to_the_runtime(to, size, tmp_path):
    cfg, checkpoint, photo = load_config("rfdetr_nano_shapes", OPTIONS), str(tmp_path / "model.pth"), tmp_path / "a.png"
    if size != (256, 256):
        cfg.test_dataloader.dataset.pipeline[1].update(scale=size[::-1], keep_ratio=False)
    classes = ShapesDataset.METAINFO["classes"]
    torch.save({"state_dict": make().state_dict(), "meta": {"dataset_meta": {"classes": classes}}}, checkpoint)
    pixels = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)  # as the config has them
    Image.fromarray(pixels).save(photo)
    assert "9 objects" in export(cfg, checkpoint, Wish(tmp_path / f"model.{to}", to, images=[str(photo)]))
    if to == "onnx":
        want = Predictor(cfg, checkpoint, Inference(score_thr=0))(pixels)
        got = Program(tmp_path / "model.onnx")(pixels, 0)
        assert got.masks.shape[1:] == want.masks.shape[1:] == pixels.shape[:2]
        assert got.labels.tolist() == want.labels.tolist()
        np.testing.assert_allclose(got.boxes, want.boxes, atol=0.01)
        assert (got.masks != want.masks).mean() < 1e-3
        assert 0.1 < got.masks.mean() < 0.9
