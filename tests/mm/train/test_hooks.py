import copy
import re
from types import SimpleNamespace

import pytest
import torch
from commands import forget
from conftest import relative_error
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from torch import nn

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.config.query import class_heads
from vitdense.mm.train.hooks import ExactLoadHook, ReproducibleHook

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _own_visualizer():
    """mmengine has one by its name, which writes into the folder of the first test."""
    forget()


ARCH = {"embed_dims": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}


def cascade(**options):
    cfg = load_config("cascade_swin_t_coco")
    cfg.model.backbone.update(arch=ARCH, init_cfg=None)
    cfg.model.neck.in_channels = [32, 64, 128, 256]
    for head in cfg.model.roi_head.bbox_head:
        head.fc_out_channels = 128
    cfg.model.test_cfg.rpn.max_per_img = 50
    cfg.model.test_cfg.rcnn.score_thr = 0.0  # random weights score low
    cfg.default_hooks.pop("visualization")
    cfg.merge_from_dict(options)
    cfg.visualizer.name = cfg.work_dir  # mmengine would find the one of an earlier test, whose folder is gone
    return cfg


def boxes(model, image):
    from mmdet.structures import DetDataSample

    shape = image.shape[1:]
    sample = DetDataSample(metainfo={"img_shape": shape, "ori_shape": shape, "scale_factor": (1, 1)})
    nn.Module.eval(model)  # mmdet's own Swin returns None from eval(), so that chaining fails
    with torch.no_grad():
        found = model.test_step({"inputs": [image], "data_samples": [sample]})[0].pred_instances
    return found.bboxes, found.scores, found.masks


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    torch.manual_seed(0)
    cfg = cascade()
    theirs = copy.deepcopy(cfg)
    theirs.model.backbone = {"type": "mmdet.SwinTransformer", **ARCH, "window_size": 7}
    model = build_model(theirs)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            fan_in = parameter[0].numel()
            nn.init.normal_(parameter, std=0.05 if "backbone" in name else fan_in**-0.5)
        elif "backbone" in name:
            nn.init.normal_(parameter, std=0.05)
    image = torch.randint(0, 256, (3, 200, 280), dtype=torch.uint8)
    path = tmp_path_factory.mktemp("published") / "cascade_mask_rcnn_swin.pth"
    torch.save({"meta": {"dataset_meta": {"classes": ["x"] * 80}}, "state_dict": model.state_dict()}, path)
    return path, image, boxes(model, image)


def test_whole_detector_of_mmdet_loads_through_load_from_and_detects_the_same(published, tmp_path):
    path, image, (want, scores, masks) = published
    runner = Runner.from_cfg(cascade(load_from=str(path), work_dir=str(tmp_path)))
    runner.load_or_resume()
    got, our_scores, our_masks = boxes(runner.model, image)
    assert len(got) == len(want) == 100
    assert (got - want).abs().max() < 1e-3
    torch.testing.assert_close(our_scores, scores, rtol=1e-4, atol=1e-6)
    assert (our_masks != masks).float().mean() < 1e-3
    runner.call_hook("before_test")
    (report,) = (path.read_text() for path in tmp_path.glob("*/load_report.txt"))
    assert re.match(r".*\(mmdet names\).*100\.00 % of the parameters loaded", report)
    assert "  loaded backbone.stages.0.blocks.0.attn.qkv.weight" in report
    assert " backbone.stages.0.blocks.0.attn.bias.index" in report  # rebuilt, not loaded


def test_hook_that_copies_the_checkpoint_gets_renamed_keys(published, tmp_path):
    """EMAHook copies the weights of the checkpoint before testing, in any order of the hooks."""
    hooks = [{"type": "EMAHook"}, {"type": "vitdense.ExactLoadHook"}]
    runner = Runner.from_cfg(cascade(load_from=str(published[0]), work_dir=str(tmp_path), custom_hooks=hooks))
    average = next(hook for hook in runner.hooks if type(hook).__name__ == "EMAHook")
    average.before_run(runner)
    runner.load_or_resume()
    ours, theirs = runner.model.state_dict(), average.ema_model.module.state_dict()
    assert all(torch.equal(theirs[key], value) for key, value in ours.items())


HEADS = r"roi_head\.(bbox_head\.\d\.fc_(cls|reg)|mask_head\.\d\.conv_logits)\..*"


def test_another_number_of_classes_needs_the_option_fresh(published, tmp_path, capsys):
    cfg = cascade(load_from=str(published[0]), work_dir=str(tmp_path))
    for head in (*cfg.model.roi_head.bbox_head, cfg.model.roi_head.mask_head):
        head.num_classes = 20
    runner = Runner.from_cfg(cfg)
    before = runner.model.backbone.norm1.weight.clone()
    with pytest.raises(CheckpointMismatchError, match=r"--fresh .*fc_cls\.weight \(81, 128\), expected \(21, 128\)"):
        runner.load_or_resume()
    assert torch.equal(runner.model.backbone.norm1.weight, before)
    next(hook for hook in runner.hooks if isinstance(hook, ExactLoadHook)).fresh = (HEADS,)
    runner.load_or_resume()
    assert not torch.equal(runner.model.backbone.norm1.weight, before)
    printed = "".join(capsys.readouterr())
    assert "kept at initialisation" in printed
    assert "missing keys" not in printed  # mmengine's, of what was meant


def nano(num_classes, recipe):
    cfg = load_config(recipe)
    for _, head in class_heads(cfg.model):
        if "num_classes" in head:
            head.num_classes = num_classes
    return build_model(cfg)


@pytest.mark.parametrize(
    ("recipe", "modules"),
    [
        ("cascade_swin_nano_shapes", {"fc_cls", "fc_reg", "conv_logits"}),
        ("atss_swin_nano_shapes", {"atss_cls"}),
        ("upernet_swin_nano_shapes", {"conv_seg"}),
    ],
)
def test_other_classes_load_with_the_printed_option_and_only_their_layers_stay_fresh(recipe, modules):
    checkpoint, model = {"state_dict": nano(8, recipe).state_dict()}, nano(3, recipe)
    with pytest.raises(CheckpointMismatchError) as error:
        fit_whole(model, checkpoint)
    (option,) = re.findall(r"--fresh '(.+?)'", str(error.value))
    (setting,) = re.findall(r"default_hooks=dict\(exact_load=dict\(fresh=\[r'(.+?)'\]\)\)", str(error.value))
    assert setting == option
    assert len(option) < 50
    _, report = fit_whole(model, checkpoint, ExactLoadHook(fresh=[option]).fresh)
    assert {key.split(".")[-2] for key in report.kept_at_init} == modules
    # A pattern for some of them is no mismatch of its own; the whole one is printed again.
    some = re.escape(report.kept_at_init[0])
    with pytest.raises(CheckpointMismatchError, match=re.escape(f"--fresh '{option}'")):
        fit_whole(model, checkpoint, [some])


@pytest.mark.parametrize("classes", [3, 8], ids=["other heads too", "backbone alone"])
def test_another_backbone_is_named_without_printing_options(classes):
    checkpoint = {"state_dict": nano(8, "atss_swin_nano_shapes").state_dict()}
    model, arch = nano(classes, "atss_swin_nano_shapes"), {**ARCH, "depths": (2, 2, 4, 2)}
    model.backbone = MODELS.build(dict(type="vitdense.Swin", arch=arch, out_indices=(1, 2, 3)))
    with pytest.raises(CheckpointMismatchError, match="backbone") as error:
        fit_whole(model, checkpoint)
    assert "--fresh" not in str(error.value)


@pytest.mark.parametrize("fresh", [r"roi_head\..*", ["roi_head(.*"]], ids=["string", "not a regular expression"])
def test_wrong_value_of_fresh_is_an_error(fresh):
    with pytest.raises(ConfigError, match="fresh"):
        ExactLoadHook(fresh=fresh)


def segmentor(backbone):
    from mmseg.models import EncoderDecoder

    head = {"type": "FCNHead", "in_channels": 48, "in_index": 0, "num_convs": 1, "channels": 16, "num_classes": 5}
    with DefaultScope.overwrite_default_scope("mmseg"):
        model = EncoderDecoder(backbone=backbone, decode_head=head, test_cfg={"mode": "whole"})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    nn.Module.eval(model)
    nn.Module.eval(model.backbone)
    return model


@torch.no_grad()
def test_segmentor_with_a_final_norm_needs_out_norm_final():
    sizes = {"patch_size": 16, "embed_dims": 48, "num_heads": 3}
    of_mmseg = {"type": "VisionTransformer", "img_size": 64, "num_layers": 2, "out_indices": [1], **sizes}
    of_mmseg |= {"final_norm": True, "norm_cfg": {"type": "LN", "eps": 1e-6}, "patch_bias": True}
    own = {"type": "vitdense.ViT", "arch": {**sizes, "depth": 2}, "pretrain_img_size": 64, "out_indices": [1]}
    theirs, ours, lacking = map(segmentor, (of_mmseg, {**own, "out_norm": "final"}, {**own, "out_norm": "none"}))
    checkpoint = {"state_dict": theirs.state_dict()}
    state, report = fit_whole(ours, dict(checkpoint))
    assert (report.scheme, report.share, report.ignored) == ("mmseg", 1, [])
    ours.load_state_dict(state, strict=True)
    image = torch.randn(1, 3, 64, 96)
    got, want = (model.encode_decode(image, [{"img_shape": (64, 96)}]) for model in (ours, theirs))
    assert relative_error(got, want) < 1e-5
    with pytest.raises(CheckpointMismatchError, match=r"backbone\.norm\.weight, backbone\.norm\.bias"):
        fit_whole(lacking, checkpoint)


def test_other_numbers_of_images_per_step_are_named_only_on_resume():
    logger = SimpleNamespace(warning=(warned := []).append)
    of_test = SimpleNamespace(_resume=False, cfg=Config(), logger=logger)  # without training data
    resumed = SimpleNamespace(_resume=True, cfg=Config({"train_dataloader": {"batch_size": 2}}), logger=logger)
    for runner, images in ((of_test, 4), (resumed, 2), (resumed, None)):
        ReproducibleHook().after_load_checkpoint(runner, {"meta": {"images_per_step": images}})
    assert not warned
    ReproducibleHook().after_load_checkpoint(resumed, {"meta": {"images_per_step": 4}})
    assert "images per step, of all processes: 2, in the checkpoint 4" in warned[0]
