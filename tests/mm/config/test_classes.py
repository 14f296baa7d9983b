"""The classes of the training data decide for heads, other data sets and metrics."""

import json

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import DATASETS, METRICS, init_default_scope
from PIL import Image

from vitdense.mm.checks import check
from vitdense.mm.checks.data import classes, contents
from vitdense.mm.checks.sets import data_sets
from vitdense.mm.config.classes import follow_checkpoint
from vitdense.mm.config.files import find_config
from vitdense.mm.config.load import ConfigError, load_config
from vitdense.mm.config.query import class_heads, drop_weights

NAMES = ("cat", "dog", "red fox")


def num_classes(cfg):
    return {head["num_classes"] for _, head in class_heads(cfg.model)}


def write(path, order=(0, 1, 2), names=NAMES):
    """An object of each category, whose place tells the class; ids from 0."""
    found = {"images": [{"id": 1, "file_name": "1.jpg", "width": 40, "height": 30}], "annotations": []}
    found["categories"] = [{"id": 20 - i, "name": names[k]} for i, k in enumerate(order)]
    for i, k in enumerate(order):
        x = 3 + 12 * k
        one = {"id": i, "image_id": 1, "category_id": 20 - i, "bbox": [x, 2, 9, 9], "area": 81, "iscrowd": 0}
        found["annotations"].append({**one, "segmentation": [[x, 2, x + 9, 2, x + 9, 11, x, 11]]})
    path.write_text(json.dumps(found))


@pytest.fixture
def mine(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "1.jpg")
    for split in ("train", "val"):
        write(tmp_path / f"{split}.json")

    def load(lines="", base="cascade_swin_nano_coco", options=None):
        path = tmp_path / "mine.py"
        path.write_text(
            f"_base_ = {str(find_config(base))!r}\n"
            f"data = dict(data_root={str(tmp_path)!r}, data_prefix=dict(img=''))\n"
            "train_dataloader = dict(dataset=dict(data, ann_file='train.json'))\n"
            "val_dataloader = dict(dataset=dict(data, ann_file='val.json'))\n"
            f"test_dataloader = val_dataloader\n{lines}"
        )
        return load_config(path, options)

    return load


@pytest.mark.parametrize(("name", "number"), [("cascade_swin_t_coco", 80), ("upernet_swin_t_ade20k", 150)])
def test_recipes_have_the_classes_of_their_data_set_type(name, number):
    assert num_classes(load_config(name)) == {number}


def test_annotation_file_decides_for_heads_data_sets_and_metrics(mine, tmp_path):
    cfg = mine()
    assert len([*class_heads(cfg.model)]) == 4  # three box heads, one mask head
    assert num_classes(cfg) == {3}
    for split in ("train", "val", "test"):
        assert tuple(cfg[f"{split}_dataloader"].dataset.metainfo["classes"]) == NAMES
    assert cfg.val_evaluator.ann_file == cfg.test_evaluator.ann_file == str(tmp_path / "val.json")
    check(cfg, ("train", "val", "test"))


def test_metainfo_decides_before_the_annotation_file(mine):
    cfg = mine("train_dataloader['dataset']['metainfo'] = dict(classes=('cat', 'red fox'))")
    assert num_classes(cfg) == {2}
    assert cfg.val_dataloader.dataset.metainfo["classes"] == ("cat", "red fox")
    check(cfg, ("train", "val"))


def test_metainfo_of_a_segmentor_decides(mine):
    cfg = mine("train_dataloader['dataset'].update(metainfo=dict(classes=('a', 'b')))", "upernet_swin_nano_camvid")
    assert num_classes(cfg) == {2}
    assert [path for path, _ in class_heads(cfg.model)] == ["model.decode_head", "model.auxiliary_head"]


def test_heads_of_other_detectors_follow(mine):
    lines = "model = dict(bbox_head=dict(type='mmdet.ATSSHead', in_channels=32))"
    assert mine(lines).model.bbox_head.num_classes == 3


def test_dict_for_the_list_of_cascade_heads_is_refused(mine):
    with pytest.raises(ConfigError, match=r"bbox_head is a list.*number of classes"):
        mine("model = dict(roi_head=dict(bbox_head=dict(num_classes=3)))")


@pytest.mark.parametrize(
    ("line", "parent", "message"),
    [
        ("train_dataloader['batchsize'] = 2", "cascade_swin_nano_coco", "train_dataloader: got batchsize"),
        (
            "train_dataloader['dataset'].update(foo=2, ann_file='', data_prefix=dict(img_path='', seg_map_path=''))",
            "upernet_swin_nano_camvid",
            "train_dataloader.*argument 'foo'",
        ),
    ],
)
def test_misspelt_argument_of_a_data_loader_is_refused(mine, line, parent, message):
    cfg = mine(line, parent)
    with pytest.raises(ConfigError, match=message):
        check(cfg, ("train",))


def test_weights_that_a_checkpoint_replaces_are_dropped_everywhere():
    def pretrained(name):
        return {"type": "Pretrained", "checkpoint": name}

    cfg = ConfigDict(
        dict(
            type="ModelWithParts",
            backbone=dict(type="vitdense.ViTAdapter", trunk=dict(arch="deit_small", init_cfg=pretrained("a"))),
            neck=dict(init_cfg=dict(type="Xavier", layer="Linear")),
            heads=[dict(init_cfg="b.pth"), dict(init_cfg=[pretrained("c"), dict(type="Xavier", layer="Linear")])],
            teacher=dict(model=dict(init_cfg=pretrained("d"))),
            teacher_config=dict(model=dict(init_cfg=pretrained("e"))),
        )
    )
    drop_weights(cfg)
    assert cfg.backbone.trunk.init_cfg is None
    assert [head.init_cfg for head in cfg.heads] == [None, None]
    assert cfg.neck.init_cfg.type == "Xavier"
    assert cfg.teacher.model.init_cfg.checkpoint == "d"  # it is in no checkpoint
    assert cfg.teacher_config.model.init_cfg.checkpoint == "e"


def labels(cfg, split):
    init_default_scope("mmdet")
    dataset = DATASETS.build({**cfg[f"{split}_dataloader"].dataset, "pipeline": [], "test_mode": True})
    instances = dataset.get_data_info(0)["instances"]
    return {one["bbox"][0]: dataset.metainfo["classes"][one["bbox_label"]] for one in instances}, instances


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2)])
@pytest.mark.parametrize("metric", ["CocoMetric", "mmdet.FasterCocoMetric", "vitdense.FasterCocoMetric"])
def test_labels_and_metrics_of_a_file_in_another_order_match_by_name(mine, tmp_path, order, metric):
    write(tmp_path / "val.json", order)
    cfg = mine(f"val_evaluator = dict(type={metric!r}, metric='bbox', classwise=True)")
    assert num_classes(cfg) == {3}
    check(cfg, ("train", "val", "test"))
    found, instances = labels(cfg, "val")
    assert found == {3 + 12 * k: NAMES[k] for k in order}
    evaluator = METRICS.build(cfg.val_evaluator)
    evaluator.dataset_meta = {"classes": NAMES}
    of_model = [NAMES.index(found[one["bbox"][0]]) for one in instances]
    boxes = torch.tensor([one["bbox"] for one in instances], dtype=torch.float32)
    predicted = {"bboxes": boxes, "scores": torch.ones(len(boxes)), "labels": torch.tensor(of_model)}
    evaluator.process({}, [{"img_id": 1, "ori_shape": (30, 40), "pred_instances": predicted}])
    values = evaluator.evaluate(1)
    assert values["coco/bbox_mAP"] == 1
    assert {name for name in NAMES if values[f"coco/{name}_precision"] == 1} == {NAMES[k] for k in order}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("kind", ["CocoDataset", "mmdet.CocoDataset", "vitdense.CocoDataset"])
def test_class_names_match_training_data_of_another_type(mine, tmp_path, kind, order):
    names = ("disc", "ring", "square")
    write(tmp_path / "val.json", order, names)
    cfg = mine(
        f"own = dict(data, _delete_=True, type={kind!r}, ann_file='val.json')\n"
        "val_dataloader = test_dataloader = dict(dataset=own)\ndel own, data, train_dataloader",
        "cascade_swin_nano_shapes",
    )
    assert cfg.train_dataloader.dataset.type == "vitdense.ShapesDataset"
    assert num_classes(cfg) == {8}
    faults = [*classes(cfg, data_sets(cfg, ("val", "test")))]
    assert not any(fault.grave for fault in faults), faults
    assert labels(cfg, "val")[0] == {3 + 12 * k: names[k] for k in order}


def test_classes_follow_the_order_of_a_checkpoint(mine):
    cfg = mine("model = dict(roi_head=dict(mask_head=dict(loss_mask=dict(class_weight=[1.0, 2.0, 3.0]))))")
    saved = ("red fox", "cat", "dog")
    follow_checkpoint(cfg, "a.pth", saved)
    assert {tuple(cfg[f"{split}_dataloader"].dataset.metainfo["classes"]) for split in ("train", "val")} == {saved}
    assert labels(cfg, "train")[0] == {3: "cat", 15: "dog", 27: "red fox"}
    assert cfg.model.roi_head.mask_head.loss_mask.class_weight == [3.0, 1.0, 2.0]
    check(cfg, ("train", "val"))
    with pytest.raises(ConfigError, match=r"a\.pth.*bird for red fox"):
        follow_checkpoint(cfg, "a.pth", ("bird", "cat", "dog"))
    follow_checkpoint(cfg, "a.pth", ("bird", "cat", "dog"), fresh=True)


def test_values_of_label_maps_follow_by_name(mine):
    lines = "train_dataloader['dataset'].update(metainfo=dict(classes=('a', 'b', 'c')))\n"
    lines += "meta = dict(classes=('c', 'a', 'b'), palette=[[3] * 3, [1] * 3, [2] * 3])\n"
    lines += "val_dataloader['dataset'].update(metainfo=meta)"
    cfg = mine(lines, "upernet_swin_nano_camvid")
    assert cfg.val_dataloader.dataset.metainfo["palette"] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    init_default_scope("mmseg")
    dataset = DATASETS.build({**cfg.val_dataloader.dataset, "pipeline": [], "lazy_init": True})
    assert dataset.metainfo["classes"] == ("a", "b", "c")
    assert dataset.label_map == {0: 2, 1: 0, 2: 1}
    follow_checkpoint(cfg, "a.pth", ("b", "c", "a"))
    dataset = DATASETS.build({**cfg.val_dataloader.dataset, "pipeline": [], "lazy_init": True})
    assert dataset.label_map == {0: 1, 1: 2, 2: 0}  # c, a, b


@pytest.mark.parametrize("parts", ["files", "metainfo"])
def test_joined_data_sets_with_other_classes_match_by_name(mine, tmp_path, parts):
    for name, order in (("train", (0, 1)), ("second", (2, 1)), ("val", (2, 0, 1))):
        write(tmp_path / f"{name}.json", order)
    stated = [f", metainfo=dict(classes={names})" if parts == "metainfo" else "" for names in (NAMES[:2], NAMES[:0:-1])]
    cfg = mine(
        "own = dict(type='CocoDataset', data_root=data['data_root'], data_prefix=data['data_prefix'], pipeline=[])\n"
        "train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[\n"
        f"    dict(own, ann_file='train.json'{stated[0]}), dict(own, ann_file='second.json'{stated[1]})]))\ndel own"
    )
    assert num_classes(cfg) == {3}
    init_default_scope("mmdet")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert set(dataset.metainfo["classes"]) == set(NAMES)
    for i, kept in enumerate([(0, 1), (2, 1)]):
        found = dataset.get_data_info(i)["instances"]
        names = {one["bbox"][0]: dataset.metainfo["classes"][one["bbox_label"]] for one in found}
        assert names == {3 + 12 * k: NAMES[k] for k in kept}
    assert labels(cfg, "val")[0] == {3 + 12 * k: NAMES[k] for k in (0, 1, 2)}
    sets = data_sets(cfg, ("train", "val"))
    assert [*classes(cfg, sets)] == []
    assert not [fault for fault in contents(cfg, sets) if "no object" in fault.what]


def test_joined_label_maps_with_other_classes_match_by_name(mine):
    cfg = mine(
        "part = train_dataloader['dataset']\n"
        "train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[\n"
        "    dict(type='BaseSegDataset', metainfo=dict(classes=('a', 'b')), lazy_init=True),\n"
        "    dict(type='BaseSegDataset', metainfo=dict(classes=('c', 'b')), lazy_init=True)]))\ndel part",
        "upernet_swin_nano_camvid",
    )
    init_default_scope("mmseg")
    parts = [DATASETS.build(one) for one in cfg.train_dataloader.dataset.datasets]
    assert [part.metainfo["classes"] for part in parts] == [("a", "b", "c")] * 2
    assert [part.label_map for part in parts] == [{0: 0, 1: 1}, {0: 2, 1: 1}]
    assert num_classes(cfg) == {3}
