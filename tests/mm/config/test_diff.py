"""Differences between the config in a checkpoint and the one in use."""

import pytest
from mmengine.config import Config

from vitdense.mm.config.diff import OF_RESULTS, OF_TRAINING, SHOWN, check_task, differences, read_saved
from vitdense.mm.config.load import ConfigError, load_config


def saved(cfg):
    return read_saved({"meta": {"cfg": cfg.pretty_text}})


@pytest.mark.parametrize("name", ["cascade_swin_t_coco", "upernet_swin_nano_camvid", "mask2former_swin_t_coco"])
def test_a_config_in_a_checkpoint_is_the_one_that_was_saved(name):
    cfg = load_config(name)
    assert differences(saved(cfg), cfg.to_dict(), [*OF_TRAINING, "model", "train_dataloader", "work_dir"]) == []


def test_what_differs_is_named_with_both_values():
    old, new = load_config("cascade_swin_nano_shapes"), load_config("cascade_swin_nano_shapes")
    new.train_cfg.max_iters = 7
    new.model.backbone.init_cfg = dict(type="Pretrained", checkpoint="other.pth")  # its weights are in the checkpoint
    new.model.roi_head.bbox_head[1].num_classes = 9
    new.custom_hooks = [dict(type="EMAHook")]
    assert differences(saved(old), new.to_dict(), OF_TRAINING) == [
        f"train_cfg.max_iters: 7, in the checkpoint {old.train_cfg.max_iters}",
        'custom_hooks.0.type: "EMAHook", in the checkpoint absent',
        "model.roi_head.bbox_head.1.num_classes: 9, in the checkpoint 8",
    ]
    (line,) = differences(saved(old), new.to_dict(), OF_RESULTS)
    assert line.startswith("model.roi_head.bbox_head.1.num_classes:")


def test_a_checkpoint_of_another_task_is_refused():
    detector, segmentor = (load_config(f"{name}_nano_shapes") for name in ("cascade_swin", "upernet_swin"))
    with pytest.raises(ConfigError, match=r"a\.pth: got weights of a CascadeRCNN, expected a EncoderDecoder"):
        check_task({"meta": {"cfg": detector.pretty_text}}, segmentor, "a.pth")


def test_long_lists_of_differences_are_cut():
    old, new = ({"model": {str(i): i + by for i in range(SHOWN + 3)}} for by in (0, 1))
    assert differences(old, new, ["model"])[-1] == "and 3 others"


def test_no_code_of_a_checkpoint_runs(tmp_path):
    proof = tmp_path / "ran"
    for text in (f"open({str(proof)!r}, 'w')", f"__import__('pathlib').Path({str(proof)!r}).touch()"):
        assert read_saved({"meta": {"cfg": f"a = dict(b={text}, c=-1)\nimport os"}}) == {"a": {"b": text, "c": -1}}
    assert not proof.exists()


def test_a_checkpoint_without_a_config_that_can_be_read_has_none():
    assert read_saved({"meta": {}}) is None
    assert read_saved({"meta": {"cfg": "model = <Model>"}}) is None
    assert read_saved({"meta": {"cfg": Config({"a": (1, 2)}).pretty_text}}) == {"a": (1, 2)}
