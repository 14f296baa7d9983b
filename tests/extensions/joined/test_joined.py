"""Several models on one trunk: the results of each alone, by one pass."""

import copy
import json
import re
import shutil
from argparse import Namespace

import numpy as np
import onnx
import pytest
import torch
from conftest import run_python
from PIL import Image

import vitdense
from vitdense import runtime
from vitdense.extensions.joined import program as of_file
from vitdense.extensions.joined.commands import export_joined, predict_joined
from vitdense.extensions.joined.model import find_models
from vitdense.mm.cli.export import Wish
from vitdense.mm.cli.predict import predict
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.data.shapes import CLASSES, draw_image
from vitdense.mm.errors import ConfigError
from vitdense.runtime import BOUNDS, compare_results

point_of = pytest.importorskip("vitdense.extensions.operating_point.point")

pytestmark = pytest.mark.long
ARCH = dict(embed_dims=48, depth=3, num_heads=3)
SIZE = dict(type="Resize", scale=(128, 96), keep_ratio=False)
TRUNK = dict(_delete_=True, arch=ARCH, pretrain_img_size=128, frozen_stages="all", out_norm="shared")
PMT = dict(_delete_=True, type="vitdense.PMTHead", in_channels=[48] * 3, num_heads=3, num_queries=9, num_blocks=1)
PMT |= dict(num_things_classes=8, num_stuff_classes=1)
MODELS = {  # name: recipe, what replaces parts of its model
    "detector": (
        "rfdetr_nano_shapes",
        dict(
            backbone=dict(TRUNK, type="vitdense.ViT", out_indices=(1, 2)),
            neck=dict(in_channels=[48] * 2),
            bbox_head=dict(num_queries=20, num_groups=1, num_layers=1),
            test_cfg=dict(max_per_img=12),
        ),
    ),
    "segmentor": (
        "linear_deit_t_camvid",
        dict(backbone=dict(TRUNK, type="vitdense.ViT", out_indices=(2,)), decode_head=dict(in_channels=48)),
    ),
    "panoptic": (
        "eomt_nano_shapes",
        dict(
            backbone=dict(TRUNK, type="vitdense.TokenViT", out_indices=(0, 1, 2)),
            panoptic_head=PMT,
            test_cfg=dict(object_mask_thr=0.0, iou_thr=0.0),
            data_preprocessor=dict(pad_size_divisor=16),
        ),
    ),
}


def write(folder, name, options=(), trunk=None):
    recipe, changes = MODELS[name]
    cfg = load_config(recipe)
    cfg.merge_from_dict({"model": copy.deepcopy(changes)})
    steps = [step for step in cfg.test_dataloader.dataset.pipeline if step.type != "Resize"]
    cfg.test_dataloader.dataset.pipeline = [steps[0], dict(SIZE), *steps[1:]]
    cfg.merge_from_dict(dict(options))
    torch.manual_seed(len(name))
    built = build_model(cfg)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    state = built.state_dict()
    if trunk is not None:
        state |= {key: x for key, x in trunk.items() if key in state}
    names = cfg.test_dataloader.dataset.get("metainfo", {}).get("classes") or CLASSES
    names = (*CLASSES, "background") if name == "panoptic" else names
    folder.mkdir(exist_ok=True)
    meta = {"dataset_meta": {"classes": names}}
    torch.save({"meta": meta, "state_dict": state}, folder / "iter_1.pth")
    if name == "detector":
        of = {"sha256": point_of.digest_of(str(folder / "iter_1.pth"))}
        of["conditions"] = point_of.conditions_of(cfg, None, 0.2)
        point = {"wish": "f1", "thresholds": 0.4, "precision": 0.1, "recall": 0.2, **of}
        (folder / "operating_point.json").write_text(json.dumps(point))
    cfg.dump(folder / f"{name}.py")
    return {key: x for key, x in state.items() if key.startswith("backbone.")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, trunk = tmp_path_factory.mktemp("joined"), None
    for name in MODELS:
        trunk = write(root / name, name, trunk=trunk)
    return {name: root / name for name in MODELS}


@pytest.fixture(scope="module")
def photos():
    return [draw_image(np.random.default_rng(i), size)[0] for i, size in enumerate(((96, 128), (64, 160), (96, 128)))]


@pytest.fixture(scope="module")
def joined(folders):
    return vitdense.join(*folders.values(), onednn=False)


def test_results_of_one_pass_equal_single_models(joined, folders, photos):
    singles, passes = {name: vitdense.load(folder, onednn=False) for name, folder in folders.items()}, []
    handle = joined.trunk.source.blocks[0].register_forward_hook(lambda *args: passes.append(1))
    found = joined(photos)
    handle.remove()
    assert len(passes) == 1  # of a batch
    for name, single in singles.items():
        for got, want in zip(found, single(photos), strict=True):
            assert got[name] == want
            assert len(want)
    alone = {name: [*single.stream(photos, 0.5, batch_size=1)] for name, single in singles.items()}
    for i, one in enumerate(joined.stream(iter(photos), 0.5, batch_size=1)):
        assert one == {name: results[i] for name, results in alone.items()}


@pytest.mark.parametrize(
    ("named", "options"),
    [
        (r"model\.backbone\.arch", {"model.backbone.arch.num_heads": 4}),
        ("finetune='lora'", {"model.backbone.finetune": "lora", "model.backbone.frozen_stages": -1}),
        ("mode='slide'", {"model.test_cfg": dict(mode="slide", crop_size=(64, 64), stride=(32, 32))}),
        (r"model\.data_preprocessor\.mean", {"model.data_preprocessor.mean": [0.0, 0.0, 0.0]}),
        ("padding", {"model.data_preprocessor.test_cfg": dict(size_divisor=64)}),
        ("step 1 of the test pipeline", {"test_dataloader.dataset.pipeline.1.scale": (160, 96)}),
        ("backbone JointViT", {"model.backbone.type": "vitdense.JointViT", "model.backbone.num_joint_blocks": 1}),
        (r"model\.backbone\.blocks\.2\.mlp\.fc1\.bias .* other values", {}),
    ],
)
def test_what_differs_is_named(named, options, folders, tmp_path):
    trunk = torch.load(folders["detector"] / "iter_1.pth")["state_dict"]
    if not options:
        trunk["backbone.blocks.2.mlp.fc1.bias"][0] += 1e-6
    write(tmp_path / "other", "segmentor", options, trunk)
    with pytest.raises(ConfigError, match=named):
        vitdense.join(folders["detector"], tmp_path / "other")


def test_names_masks_and_tiles(folders, tmp_path, monkeypatch):
    for models, options in ((["detector"], {}), (["detector"] * 2, {}), (["detector", "segmentor"], {"names": ["a"]})):
        with pytest.raises(ConfigError, match="different names"):
            vitdense.join(*(folders[name] for name in models), **options)
    monkeypatch.setitem(MODELS, "detector", ("rfdetr_seg_nano_shapes", MODELS["detector"][1]))
    write(tmp_path, "detector")
    found = vitdense.join(tmp_path, tmp_path, names=["a", "b"], tiles=64)
    image, passes = draw_image(np.random.default_rng(5), (96, 128))[0], []
    found.trunk.source.blocks[0].register_forward_hook(lambda *args: passes.append(1))
    alone = vitdense.load(tmp_path, tiles=64)
    alone.model.backbone.blocks[0].register_forward_hook(lambda *args: passes.append(2))
    want = alone(image, 0.0)
    assert len(want.masks)
    assert found(image, 0.0) == {"a": want, "b": want}
    assert passes.count(1) == passes.count(2)


def test_predictions_of_each_in_a_folder(folders, photos, tmp_path):
    for i, photo in enumerate(photos):
        Image.fromarray(photo).save(tmp_path / f"{i}.png")
    models = find_models([*folders.values()])
    results = predict_joined(models, [tmp_path], tmp_path / "out")
    assert results == [
        tmp_path / "out" / name for name in ("detector/predictions.json", "segmentor", "panoptic/predictions.json")
    ]
    predict(*models["panoptic"], [tmp_path], tmp_path / "alone")
    for path in (tmp_path / "alone").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "out/panoptic" / path.relative_to(tmp_path / "alone")).read_bytes()


@pytest.fixture(scope="module")
def program(folders, photos, tmp_path_factory):
    root = tmp_path_factory.mktemp("program")
    Image.fromarray(photos[1]).save(root / "1.png")
    models = find_models([*folders.values()])
    wish = Wish(root / "all.onnx", "onnx", (96, 128), images=[str(root / "1.png")])
    return root / "all.onnx", export_joined(models, wish, Namespace(proof=True, with_preprocessing=False))


def test_one_file_finds_the_same_as_single_models(program, joined, photos):
    path, said = program
    assert all(f"onnxruntime: {name}, " in said for name in MODELS)
    found, want = of_file.Joined(path, threads=1)(photos[0]), joined(photos[0])
    assert [*found] == [*MODELS]
    assert of_file.Joined(path, threads=1).models["detector"].operating_point.thresholds == 0.4
    for name, result in found.items():
        fits, compared = compare_results([(result, want[name])], BOUNDS["float32"])
        assert fits, compared
    scopes = [str(node.metadata_props) for node in onnx.load(path).graph.node if node.op_type == "Softmax"]
    assert sum("SharedTrunk" in scope for scope in scopes) == ARCH["depth"]
    with pytest.raises(ValueError, match=r"model='', expected one of .*detector"):
        runtime.Program(path)


def test_a_proof_of_each_model(program, tmp_path):
    """The trunk is in the proof of the first model."""
    verify, (path, _) = pytest.importorskip("vitdense.extensions.proof.verify"), program
    assert verify.verify(path, threads=1)[0]
    model = onnx.load(path)
    weight = next(x for x in model.graph.initializer if x.name.endswith("blocks.2.mlp.fc1.bias"))
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) + 0.1, weight.name))
    onnx.save(model, tmp_path / "other.onnx")
    shutil.copy(path.with_suffix(".proof"), tmp_path / "other.proof")
    same, text = verify.verify(tmp_path / "other.onnx", threads=1)
    assert not same
    assert re.search(r"detector, differs from tasks\.0\..*trunk.*blocks\.2 on", text)
    assert "segmentor, differs from the output segmentor/logits" in text


def test_the_file_runs_without_torch(program, photos, tmp_path):
    path, _ = program
    np.save(tmp_path / "photo.npy", photos[0])
    shutil.copy(runtime.__file__, tmp_path)
    shutil.copy(of_file.__file__, tmp_path / "joined.py")
    code = f"""
import sys
sys.modules |= dict.fromkeys(("torch", "vitdense", "mmengine"))
import numpy as np, joined
found = joined.Joined({str(path)!r}, threads=1)(np.load("photo.npy"))
print(len(found["detector"].boxes), found["segmentor"].semantic.shape, len(found["panoptic"].segments))
"""
    printed, found = run_python(code, folder=tmp_path).stdout, of_file.Joined(path, threads=1)(photos[0])
    assert printed.split()[0] == str(len(found["detector"].boxes)) != "0"
    assert "(96, 128)" in printed
