"""Folders of images, repeated augmentation, top-1, and whole trainings by the tools."""

import numpy as np
import pytest
import torch
from conftest import REPO
from mmengine.registry import DATASETS, TRANSFORMS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image

from vitdense import ViT
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config
from vitdense.mm.train.launch import train
from vitdense.research.pretraining.data import ImageFolder, SeededRepeatedSampler, Top1
from vitdense.research.pretraining.masked import MaskedImageModel

CONFIGS = ("distill_deit_s_imagenet", "mae_vit_b_imagenet", "simmim_swin_b_imagenet", "masked_deit_t_photos")


@pytest.fixture
def folder(tmp_path):
    for i in range(8):
        path = tmp_path / "photos" / ("bright" if i % 2 else "dark") / "part" / f"{i}{'.PNG' if i == 3 else '.png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(i).integers(0, 80, (40, 56, 3)) + (170 if i % 2 else 0)
        Image.fromarray(values.astype(np.uint8)).save(path)
    (tmp_path / "photos/dark/notes.txt").write_text("no image")
    return tmp_path / "photos"


def labels(folder, **options):
    data = ImageFolder(str(folder), labels=True, **options)
    return data.metainfo["classes"], [data.get_data_info(i)["gt_label"] for i in range(len(data))]


def test_image_folder_takes_classes_from_the_first_folder(folder, tmp_path):
    data = ImageFolder(str(folder))
    paths = [data.get_data_info(i)["img_path"] for i in range(len(data))]
    assert paths == sorted(paths)
    assert "gt_label" not in data.get_data_info(0)
    assert labels(folder) == (("bright", "dark"), [0] * 4 + [1] * 4)
    assert labels(folder, metainfo={"classes": ("dark", "bright")})[1] == [1] * 4 + [0] * 4
    (folder / "absent").mkdir()  # a class without images counts
    assert labels(folder) == (("absent", "bright", "dark"), [1] * 4 + [2] * 4)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/a").symlink_to(folder / "dark")
    assert len(ImageFolder(str(tmp_path / "links"))) == 4


def test_image_folder_refuses_images_without_a_class_and_no_images(folder):
    with pytest.raises(ValueError, match="dark"):
        ImageFolder(str(folder), labels=True, metainfo={"classes": ("bright",)})
    with pytest.raises(ValueError, match="no image"):
        ImageFolder(str(folder / "nothing"))
    Image.new("RGB", (8, 8)).save(folder / "stray.png")
    assert len(ImageFolder(str(folder))) == 9
    with pytest.raises(ValueError, match="stray"):
        ImageFolder(str(folder), labels=True)


def test_pipeline_gives_normalised_rgb_and_the_label(folder):
    Image.new("RGB", (64, 64), (255, 0, 0)).save(folder / "bright" / "red.png")
    pipeline = [{"type": "vitdense.LoadImage"}, {"type": "vitdense.TimmTransform", "size": 32, "training": False}]
    cfg = {"type": "vitdense.ImageFolder", "data_root": str(folder), "labels": True, "pipeline": pipeline}
    data = DATASETS.build(cfg)
    sample = next(data[i] for i in range(len(data)) if data.get_data_info(i)["img_path"].endswith("red.png"))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    want = (torch.tensor([1.0, 0.0, 0.0]) - mean) / std
    torch.testing.assert_close(sample["inputs"], want[:, None, None].expand(3, 32, 32), atol=1e-5, rtol=1e-5)
    assert sample["data_samples"].gt_label == 0


@pytest.mark.parametrize(("images", "ranks", "length"), [(600, 2, 256), (600, 1, 512), (10, 1, 10), (10, 2, 5)])
def test_repeated_augmentation_spreads_the_repeats_of_an_image_over_ranks(monkeypatch, images, ranks, length):
    draws = []
    for rank in range(ranks):
        monkeypatch.setattr("mmengine.dataset.sampler.get_dist_info", lambda rank=rank: (rank, ranks))
        sampler = SeededRepeatedSampler(range(images), repeats=3, seed=5)
        assert len(sampler) == length
        draws.append(list(sampler))
        assert list(sampler) == draws[-1]
        assert list(SeededRepeatedSampler(range(images), seed=6)) != draws[-1]
        sampler.set_epoch(1)
        assert list(sampler) != draws[-1]
        assert not {index.key for index in sampler} & {index.key for index in draws[-1]}
    stream = [index for together in zip(*draws) for index in together]
    # In the order of the stream every image comes three times in a row, the last perhaps not to its end.
    whole = len(stream) // 3 * 3
    assert all(stream[i] == stream[i + 1] == stream[i + 2] for i in range(0, whole, 3))
    assert len(set(stream)) == -(-len(stream) // 3)
    assert len({index.key for index in stream}) == len(stream)  # another augmentation each time


@pytest.mark.long
def test_masks_are_drawn_by_the_workers_and_by_the_seed_of_the_sample(folder):
    pipeline = [
        {"type": "vitdense.SeedFromSample"},
        {"type": "vitdense.LoadImage"},
        {"type": "vitdense.TimmTransform", "size": 64, "training": False},
        {"type": "vitdense.DrawMask", "ratio": 0.4, "cell": 8, "kind": "blocks"},
    ]

    def batch(workers, **sampler):
        loader = Runner.build_dataloader(
            {
                **{"batch_size": 8, "num_workers": workers},
                "sampler": {"type": "vitdense.SeededEpochSampler", "shuffle": False, **sampler},
                "dataset": {"type": "vitdense.ImageFolder", "data_root": str(folder), "pipeline": pipeline},
            },
            seed=3,
        )
        return next(iter(loader))

    def masks(batch):
        return torch.stack([sample.mask for sample in batch["data_samples"]])

    data = batch(2)
    assert len(masks(data).flatten(1).unique(dim=0)) == 8
    assert torch.equal(masks(data), masks(batch(0)))
    assert not torch.equal(masks(data), masks(batch(0, seed=4)))
    vit = {"embed_dims": 16, "depth": 1, "num_heads": 2}
    vit = ViT({**vit, "patch_size": 8}, pretrain_img_size=64, out_indices=(0,), out_norm="final", drop_path_rate=0.0)
    model = MaskedImageModel(vit, {"type": "pixels"})
    before = torch.get_rng_state()
    data = model.data_preprocessor(data, training=True)
    assert all(sample.mask.device.type == "cpu" for sample in data["data_samples"])
    assert torch.equal(model(**data)[1], masks(data))
    assert torch.equal(torch.get_rng_state(), before)  # nothing is left to draw


def test_top_1_is_the_share_of_found_classes():
    metric = Top1()
    metric.process({}, [{"pred_label": 1, "gt_label": 1}, {"pred_label": 0, "gt_label": 1}])
    metric.process({}, [{"pred_label": 2, "gt_label": 2}])
    assert metric.evaluate(3) == {"accuracy/top1": pytest.approx(200 / 3)}


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_config_builds(name):
    cfg = load_config(name)
    with torch.device("meta"):
        model = build_model(cfg)
    *_, augmentation, last = cfg.train_dataloader.dataset.pipeline
    size = (last if last.type == "vitdense.TimmTransform" else augmentation).size
    assert model.backbone.out_indices == (len(model.backbone.stage_modules()) - 1,)
    out = model.backbone(torch.empty(2, 3, size, size, device="meta"))[-1]
    stride = model.backbone.out_strides[-1]
    assert (out[0] if isinstance(out, tuple) else out).shape[-2:] == (size // stride, size // stride)
    assert cfg.custom_imports.imports[0] == "vitdense"
    if last.type == "vitdense.DrawMask":
        images = torch.empty(2, 3, size, size, device="meta")
        draw = TRANSFORMS.build(last)
        drawn = [draw({"inputs": image, "data_samples": BaseDataElement()})["data_samples"] for image in images]
        mask = model.masks_of(drawn, images)
        assert mask.shape == (2, size // stride, size // stride)
        assert mask.float().mean().item() == pytest.approx(last.ratio, abs=0.02)


@pytest.mark.long
def test_masked_pretraining_then_distillation(folder, tmp_path):
    """The checkpoint of the first initialises the second, whose teacher is another classifier."""
    loader = {"num_workers": 0, "persistent_workers": False, "batch_size": 4}
    options = {f"train_dataloader.{key}": value for key, value in loader.items()}
    options |= {"data_root": str(folder), "settings.max_iters": 2, "default_hooks.checkpoint.interval": 2}
    options |= {
        "model.backbone.type": "vitdense.StemViT",
        "model.backbone.stem": "hmlp_ln",
        "model.target.type": "mean_colour",
    }
    train(load_config(REPO / "configs/research/masked_deit_t_photos.py", options, str(tmp_path / "masked")))
    masked = torch.load(tmp_path / "masked/iter_2.pth", weights_only=False)["state_dict"]

    config = tmp_path / "student.py"
    config.write_text(f"""
_base_ = "{REPO}/configs/research/distill_deit_s_imagenet.py"
sizes = dict(arch="deit_tiny", out_indices=[11], out_norm="final", output_cls_token=True)
teacher = dict(type="vitdense.Classifier", num_classes=2, backbone=dict(type="vitdense.ViT", **sizes))
model = dict(
    num_classes=2,
    mixup=None,
    backbone=dict(**sizes, type="vitdense.StemViT", stem="hmlp_ln", init_cfg="{tmp_path}/masked/iter_2.pth"),
    teacher=dict(_delete_=True, model=teacher, image_size=32),
)
pipeline = [dict(step, size=32) if step.type == "vitdense.TimmTransform" else step for step in _base_.train_pipeline]
train_dataloader = dict(**{loader}, dataset=dict(data_root="{folder}", pipeline=pipeline))
val_dataloader = train_dataloader
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-9))
del sizes, teacher, pipeline
""")
    train(load_config(config, {"settings.max_epochs": 1}, str(tmp_path / "student")))
    state = torch.load(tmp_path / "student/epoch_1.pth", weights_only=False)["state_dict"]
    assert {"head.weight", "backbone.norm.weight"} <= state.keys()
    weight = "backbone.blocks.3.mlp.fc1.weight"
    torch.testing.assert_close(state[weight], masked[weight], rtol=0, atol=1e-4)  # at such a learning rate
    assert "accuracy/top1" in next((tmp_path / "student").rglob("*.log")).read_text()
