"""Maps of a frozen trunk that are computed once: the same training, no passes, and nothing old, cut or foreign."""

import shutil
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from commands import forget
from linear_vit import HEAD
from mmdet.models import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.structures import InstanceData
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.utils._pytree import tree_structure
from torch.utils.data import DataLoader, Dataset

import vitdense
from vitdense.extensions.features.features import (
    FeatureCache,
    check_maps,
    first_input,
    frozen_trunk,
    input_sha256,
    trunk_sha256,
)
from vitdense.extensions.features.map_store import MapStore, stacked
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.config.base import Asked, run_passes
from vitdense.mm.config.load import load_config
from vitdense.mm.config.passes import TRAINING
from vitdense.mm.data.seeded import SeededEpochSampler, SeededInfiniteSampler
from vitdense.mm.errors import ConfigError
from vitdense.mm.precision import cpu_has_bfloat16
from vitdense.mm.train import launch

IMAGES, VAL = 8, 4
VIT = {"embed_dims": 32, "depth": 2, "num_heads": 2}


@HOOKS.register_module()
class TrunkPasses(Hook):
    priority = "VERY_LOW"  # after the start of the cache

    def before_train(self, runner):
        TrunkPasses.made = []
        runner.model.backbone.patch_embed.register_forward_hook(
            lambda module, args, output: self.made.extend([runner.iter] * len(args[0]))
        )


@pytest.fixture(autouse=True)
def _own_logger():
    forget()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("features")


@pytest.fixture
def train(data, tmp_path):
    def run(name, steps, options, interval=50, caching=None, **asked):
        given = {"data_root": f"{data}/shapes/", "settings.max_iters": steps, **options}
        cfg = load_config("upernet_swin_nano_shapes", given, str(tmp_path / name))
        trunk = dict(type="vitdense.ViT", arch=VIT, out_indices=(1,), out_norm="final", frozen_stages="all")
        cfg.model.data_preprocessor.size = (64, 64)
        cfg.model = dict(cfg.model, backbone=trunk, decode_head=dict(HEAD, in_channels=32), auxiliary_head=None)
        for split in ("train", "val", "test"):
            loader = cfg[f"{split}_dataloader"]
            loader.update(num_workers=0, persistent_workers=False, batch_size=2)
            loader.dataset.draw = dict(num_train=IMAGES, num_val=VAL, image_size=(64, 64))
        cfg.default_hooks.checkpoint.update(interval=interval, save_best=None)
        cfg.default_hooks.passes = dict(type="TrunkPasses")
        launch.train(cfg, args=caching, **asked)
        content = read_checkpoint(str(tmp_path / name / f"iter_{steps}.pth"))
        content["losses"] = content["message_hub"]["log_scalars"]["train/loss"].data[0]
        return content

    return run


def cache(folder, views=None, dtype="float16"):
    return SimpleNamespace(cache_features=str(folder), views=views, cache_dtype=dtype)


ONE_VIEW = {"train_dataloader.sampler.views": 1}


def equal(a, b):
    assert (a["losses"] == b["losses"]).all()
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert [key for key, x in a["state_dict"].items() if not x.equal(b["state_dict"][key])] == []


@pytest.mark.long
def test_training_with_float32_maps_equals_training_without_cache(train, tmp_path):
    validates = {"train_cfg.val_interval": 10}
    without = train("without", 50, validates | ONE_VIEW)
    assert len(TrunkPasses.made) == 50 * 2 + 5 * VAL
    cached = train("cached", 50, validates, caching=cache(tmp_path / "maps", 1, "float32"))
    equal(cached, without)
    assert {*TrunkPasses.made} <= {*range(IMAGES // 2), 10}  # the first epoch, the first validation
    assert len(TrunkPasses.made) == IMAGES + VAL
    again = train("again", 50, validates, caching=cache(tmp_path / "maps", 1, "float32"))
    equal(again, without)
    assert TrunkPasses.made == []


@pytest.mark.long
def test_a_resumed_training_reuses_stored_maps(train, tmp_path):
    options = {"default_hooks.ema.type": "EMAHook"}
    caching = dict(caching=cache(tmp_path / "maps", 2), amp="bfloat16" if cpu_has_bfloat16() else None)
    whole = train("whole", 10, options, interval=2, **caching)
    assert {*TrunkPasses.made} <= {*range(IMAGES), 10}  # 4 steps for each view
    for path in sorted((tmp_path / "maps").glob("*/*/*"))[::2]:
        path.unlink()
    (tmp_path / "whole/iter_10.pth").unlink()
    (tmp_path / "whole/last_checkpoint").write_text("iter_6.pth")
    again = train("whole", 10, options, interval=2, resume="auto", **caching)
    equal(again, whole)
    assert {*TrunkPasses.made} <= {*range(6, 11)}
    assert TrunkPasses.made


SAMPLERS = {"epoch": SeededEpochSampler, "infinite": SeededInfiniteSampler}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_seeds_come_back_view_by_view(kind):
    sampler, epochs = SAMPLERS[kind](range(5), views=2, seed=3), []
    draws = iter(sampler)
    for epoch in range(4):
        if kind == "epoch":
            sampler.set_epoch(epoch)
            draws = iter(sampler)
        epochs.append({int(index): index.key for index in islice(draws, 5)})
    assert epochs[0] == epochs[2]
    assert epochs[1] == epochs[3]
    assert not {*epochs[0].values()} & {*epochs[1].values()}
    assert len({*epochs[0].values()}) == 5
    with pytest.raises(ConfigError, match="views"):
        SAMPLERS[kind](range(5), views=0)


MAPS = [torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), torch.ones(4)]
KEY = "ab" * 32


def rewrite(path, *tensors):
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file({str(i): x for i, x in enumerate(tensors)}, path, about)


def other_file(store, path):
    MapStore(store.folder.parent, "other" * 13, "float32").write(KEY, store.pack(MAPS))
    shutil.copy(next(store.folder.parent.glob("otherother*/*/*")), path)


def cut(size):
    return lambda store, path: path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    **{f"cut to {size}": cut(size) for size in (0, 8, 100, -1)},
    "zeros": lambda store, path: path.write_bytes(bytes(path.stat().st_size)),
    "last byte": lambda store, path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
    "weights": lambda store, path: save_file({"0": torch.ones(3)}, path),
    "other trunk": other_file,
    "other data type": lambda store, path: rewrite(path, torch.ones(2).half()),
    "other values": lambda store, path: rewrite(path, torch.zeros(4), torch.ones(4)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_truncated_damaged_or_foreign_file_is_named_and_not_read(damage, tmp_path, capsys):
    store = MapStore(tmp_path, "trunk" * 13, "float32")
    store.write(KEY, store.pack(MAPS))
    assert all(x[0].equal(y) for x, y in zip(stacked([store.read(KEY)], torch.device("cpu")), MAPS))
    DAMAGES[damage](store, store.path(KEY))
    assert store.read(KEY) is None
    said = capsys.readouterr()
    assert str(store.path(KEY)) in said.out + said.err


def test_damaged_or_vanished_maps_are_made_again(tmp_path, capsys):
    """Also in a training that has computed all that it may; a cleaner of temporary files is said."""
    store, image = MapStore(tmp_path, "trunk", "float32"), torch.rand(1, 3, 4, 4)
    cache = FeatureCache(store, tree_structure([image]), expected=1)
    for damage in (None, "zeros", "last byte", "vanished"):
        if damage == "vanished":
            store.path(input_sha256(image[0])).unlink()
        elif damage:
            DAMAGES[damage](store, store.path(input_sha256(image[0])))
        (got,) = cache.maps(image, True, lambda x: [2 * x])
        assert got.equal(2 * image)
        said = capsys.readouterr()
        assert ("cleaner" in said.out + said.err) == (damage == "vanished")
    assert cache.computed == 4
    (store.folder / "00").mkdir(exist_ok=True)
    (store.folder / "00" / f".{'0' * 32}.safetensors").write_bytes(bytes(100))  # of a write that was killed
    assert store.check_room(0, "")[0] == store.path(input_sha256(image[0])).stat().st_size


def test_maps_beyond_float16_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--cache-dtype float32"):
        MapStore(tmp_path, "trunk", "float16").pack([torch.tensor([1e5])])


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
    store = MapStore(tmp_path, "trunk", "float16")
    store.write(KEY, store.pack(MAPS))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    assert store.check_room(store.path(KEY).stat().st_size + 100, "") == (store.path(KEY).stat().st_size, 100)
    with pytest.raises(ConfigError, match="fewer views"):
        store.check_room(store.path(KEY).stat().st_size + 101, "fewer views")


def frozen(**options):
    torch.manual_seed(0)
    return vitdense.ViT(VIT, **{"out_indices": (1,), "frozen_stages": "all", **options}).train()


def test_a_trunk_that_differs_has_other_maps():
    """Drop path and checkpointing are nothing to a frozen trunk, so that recipes share its maps."""
    config = dict(type="vitdense.ViT", arch=VIT, out_indices=(1,))
    same = [(frozen(), config), (frozen(), {**config, "drop_path_rate": 0.1, "with_cp": True, "init_cfg": "a.pth"})]
    changed = frozen()
    with torch.no_grad():
        changed.norm1.bias[3] += 1e-6
    others = [
        (changed, config),
        (frozen(), {**config, "out_indices": (0,)}),
        (frozen(), {**config, "window_size": 4}),
        (frozen(), {**config, "out_norm": "final"}),
        (frozen(out_indices=(0, 1)), config),
    ]
    assert len({trunk_sha256(*one) for one in same}) == 1
    assert len({trunk_sha256(*one) for one in (*same, *others)}) == 1 + len(others)


def test_an_input_that_differs_has_other_maps():
    image = torch.rand(3, 8, 6)
    brighter, padded = image.clone(), torch.nn.functional.pad(image, (0, 2))
    brighter[2, 7, 5] += 1e-6
    keys = [input_sha256(x) for x in (image, brighter, padded, image.flip(2), image.view(3, 6, 8), image.double())]
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(input_sha256(image))
    assert len({*keys}) == len(keys)
    assert input_sha256(image.clone()) == keys[0]


@pytest.mark.parametrize(
    ("trunk", "named"),
    [
        (lambda: frozen(frozen_stages=1), "frozen_stages=all"),
        (lambda: frozen(frozen_stages=-1, finetune="lora"), "finetune=None"),
        (lambda: vitdense.ViTAdapter(frozen(out_norm="none"), deform_num_heads=4), "ViT-Adapter"),
        (lambda: vitdense.JointViT(1, arch=VIT, out_indices=(1,), frozen_stages="all"), "JointViT"),
        (lambda: nn.Sequential(nn.Dropout(0.5)), "random numbers"),
        (lambda: nn.BatchNorm2d(3).requires_grad_(False), "statistics"),
    ],
    ids=["trains", "lora", "adapter", "blocks in the head", "dropout", "batch norm"],
)
def test_a_trunk_not_frozen_or_not_separate_is_refused(trunk, named, tmp_path):
    model = nn.Module()
    model.backbone = trunk()
    with pytest.raises(ConfigError, match=named), torch.no_grad():
        check_maps(frozen_trunk(model), torch.rand(1, 3, 32, 48), MapStore(tmp_path, "trunk", "float32"))


def test_stored_maps_that_differ_from_the_trunk_are_refused(tmp_path):
    """The weights are as they were, the code is not; whatever the data are now."""
    store, trunk = MapStore(tmp_path, "trunk", "float16"), frozen()
    with torch.no_grad():
        for side in (48, 32, 48):
            check_maps(trunk, torch.rand(1, 3, 32, side), store)
        trunk.register_forward_hook(lambda module, args, output: tuple(1.1 * x for x in output))
        with pytest.raises(ConfigError, match="code"):
            check_maps(trunk, torch.rand(1, 3, 32, 64), store)


class Drawn(Dataset):
    def __init__(self, sides, seeded=True):
        self.sides, self.seeded, self.generator = sides, seeded, torch.Generator()

    def __len__(self):
        return len(self.sides)

    def __getitem__(self, index):
        if self.seeded:
            self.generator.manual_seed(hash(index.key))
        image = torch.randint(0, 255, (3, 16, self.sides[index]), generator=self.generator)
        sample = DetDataSample(metainfo={"img_shape": image.shape[1:]})
        sample.gt_instances = InstanceData(bboxes=torch.zeros(0, 4))
        return {"inputs": image, "data_samples": sample}


@pytest.mark.parametrize(
    ("dataset", "options", "named"),
    [
        (Drawn([16, 16]), {}, None),
        (Drawn([16, 16], seeded=False), {}, "SeedFromSample"),
        (Drawn([16, 24]), {}, "batch_augments"),
        (Drawn([16, 24]), {"batch_augments": [dict(type="mmdet.BatchFixedSizePad", size=(32, 32))]}, None),
        (Drawn([64] * 4), {"batch_augments": [dict(type="vitdense.BatchResize", step=16)]}, "batch_augments"),
    ],
)
def test_inputs_that_do_not_repeat_are_refused(dataset, options, named):
    loader = DataLoader(dataset, 2, sampler=SeededInfiniteSampler(dataset, views=1, seed=0), collate_fn=pseudo_collate)
    model = nn.Module()
    model.data_preprocessor = DetDataPreprocessor(**options)
    if named is None:
        assert first_input(model, loader).shape[:2] == (1, 3)
    else:
        with pytest.raises(ConfigError, match=named):
            first_input(model, loader)


def test_more_inputs_than_there_are_views_are_refused(tmp_path):
    trunk, images = frozen(), torch.rand(4, 3, 32, 32)
    spec = tree_structure(trunk(images))
    cache = FeatureCache(MapStore(tmp_path, "trunk", "float32"), spec, expected=2)
    for x in (images[:2], images[[1, 0, 0]]):
        found, wanted = cache.maps(x, True, trunk), trunk(x)
        torch.testing.assert_close(found[0], wanted[0])  # computed in other batches
        assert found[0].stride() == wanted[0].stride()
    cache.maps(images[3:], False, trunk)  # a validation has as many as it has
    assert (cache.computed, cache.read) == (3, 3)
    with pytest.raises(ConfigError, match="do not come back"):
        cache.maps(images[2:], True, trunk)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_dataloader.sampler": dict(_delete_=True, type="DefaultSampler")}, "SeededEpochSampler"),
        ({"compile": True}, "compile"),
    ],
)
def test_a_config_whose_data_do_not_come_back_is_refused(options, named):
    cfg = load_config("upernet_swin_nano_shapes", options)
    with pytest.raises(ConfigError, match=named):
        run_passes(TRAINING, cfg, Asked(args=cache("maps")))
