"""``--cfg-options`` that change what they name, or are refused."""

import pytest

from vitdense.mm.config.load import ConfigError, load_config


def load(options, name="cascade_swin_nano_shapes"):
    return load_config(name, options)


REFUSED = [  # key, value, words of the message
    ("trian_cfg.max_iters", 2, "did you mean .*train_cfg"),
    ("max_iters", 2, r"did you mean .*settings\.max_iters"),
    ("lr", 2, r"did you mean .*optim_wrapper\.optimizer\.lr"),
    ("train_cfg.max_iter", 2, r"did you mean .*train_cfg\.max_iters"),
    ("train_dataloader.batchsize", 2, r"did you mean .*train_dataloader\.batch_size"),
    ("train_dataloader.dataset.indice", 2, r"did you mean .*dataset\.indices"),
    ("model.backbone.drop_path", 2, r"did you mean .*model\.backbone\.drop_path_rate"),
    ("model.roi_head.bbox_head.0.num_class", 2, r"did you mean .*bbox_head\.0\.num_classes"),
    ("model.test_cfg.rcnn.max_per_im", 2, r"did you mean .*rcnn\.max_per_img"),
    ("default_hooks.logger.intervall", 2, r"did you mean .*logger\.interval"),
    ("optim_wrapper.optimizer.momentum", 3, r"optimizer has no momentum; expected one of .*betas.*weight_decay"),
    ("width", 3, "width is a variable"),
    ("train_pipeline.0.type", 3, "train_pipeline is a variable"),
    ("model.roi_head.bbox_head.3.num_classes", 3, "bbox_head is a list; expected an index of 0 to 2"),
    ("model.roi_head.bbox_head.num_classes", 3, "bbox_head is a list; expected an index of 0 to 2"),
    ("load_from.path", 3, r"load_from is None.*set load_from itself"),
    ("custom_hooks.0.type", 3, r"no list custom_hooks.*default_hooks"),
    ("model.neck.type", "", "got .*, expected the name of a class"),
    ("model.backbone", 3, r"got .*, expected dict\(...\)"),
    ("model", None, r"got .*, expected dict\(...\)"),
    ("model.neck.in_channels", None, r"got .*, expected \[...\]"),
    ("model.neck.in_channels", {}, r"got .*, expected \[...\]"),
    ("model.neck.in_channels.0", 64, r"got .*, expected the whole list: model\.neck\.in_channels="),
    ("train_dataloader.dataset.data_root", 7, "got .*, expected a path"),
    ("model.neck.out_channels", {}, "got .*, expected a value"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED)
def test_a_key_that_cannot_be_set_is_refused_with_the_reason(key, value, words):
    with pytest.raises(ConfigError, match=f"--cfg-options {key}: .*{words}"):
        load({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim_wrapper.optimizer.eps", 1e-6),  # an argument of AdamW
        ("optim_wrapper.accumulative_counts", 4),
        ("optim_wrapper.paramwise_cfg.custom_keys.neck.lr_mult", 0.1),  # new keys of a dict without a type
        ("model.backbone.finetune", "attention"),
        ("model.backbone.init_cfg", None),
        ("model.neck.norm_cfg.eps", 1e-3),  # an argument of torch's batch norm
        ("default_hooks.early_stopping.type", "EarlyStoppingHook"),
        ("default_hooks.exact_load.fresh", ["a"]),
        ("custom_hooks", [{"type": "EMAHook"}]),
        ("randomness.deterministic", True),
        ("train_dataloader.dataset.indices", 4),
        ("load_from", "a.pth"),
        ("val_evaluator.metric", ["bbox"]),  # of another kind than the old value
        ("model.neck.norm_cfg", None),
        ("model.backbone.frozen_stages", "all"),
        ("default_hooks.checkpoint.save_best", ["coco/bbox_mAP", "coco/segm_mAP"]),
        ("optim_wrapper.clip_grad", None),
        ("find_unused_parameters", True),
        ("optim_wrapper.paramwise_cfg.custom_keys.norm1.decay_mult", 0.0),  # near relative_position_bias_table's
    ],
)
def test_known_key_is_set(key, value):
    node = load({key: value})
    for part in key.split("."):
        node = node[part]
    assert node == value


def test_new_type_decides_which_options_there_are():
    cfg = load({"optim_wrapper.optimizer.momentum": 0.9, "optim_wrapper.optimizer.type": "SGD"})
    assert cfg.optim_wrapper.optimizer.momentum == 0.9
    cfg = load({"optim_wrapper.dtype": "bfloat16", "optim_wrapper.type": "AmpOptimWrapper"})
    assert cfg.optim_wrapper.dtype == "bfloat16"


@pytest.mark.parametrize("root", ["/mnt/coco", "s3://coco/", "data/coco"])  # the last is the old one
def test_new_data_root_replaces_the_old_one_in_every_path(root):
    cfg, root = load({"data_root": root}, "cascade_swin_t_coco"), root.rstrip("/")
    assert cfg.train_dataloader.dataset.data_root == cfg.test_dataloader.dataset.data_root == f"{root}/"
    assert cfg.val_evaluator.ann_file == f"{root}/annotations/instances_val2017.json"
    assert ("data/coco" in cfg.pretty_text) == (root == "data/coco")


ROOTS = """
_base_ = 'vitdense::configs/cascade_swin_t_coco.py'
train_dataloader = val_dataloader = test_dataloader = dict(dataset=dict(data_root='x/'))
val_evaluator = test_evaluator = dict(ann_file='x/val.json')
"""


def test_data_root_without_effect_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(ROOTS)
    with pytest.raises(ConfigError, match=r"data_root.*train_dataloader\.dataset\.data_root"):
        load_config(tmp_path / "mine.py", {"data_root": "/mnt/coco"})


def test_option_of_the_validation_data_holds_for_equal_test_data():
    cfg = load({"val_dataloader.batch_size": 3, "val_evaluator.metric": "bbox"})
    assert cfg.test_dataloader.batch_size == 3
    assert cfg.test_evaluator.metric == "bbox"
    cfg = load({"val_dataloader.batch_size": 3, "test_dataloader.batch_size": 5})
    assert (cfg.val_dataloader.batch_size, cfg.test_dataloader.batch_size) == (3, 5)
