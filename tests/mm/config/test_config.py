import pytest

from vitdense.mm.config.load import ConfigError, load_config


def test_new_data_root_replaces_the_old_one_in_every_path(repo):
    cfg = load_config(repo / "configs/cascade_swin_t_coco.py", {"data_root": "/mnt/coco"})
    assert cfg.train_dataloader.dataset.data_root == "/mnt/coco/"
    assert cfg.test_dataloader.dataset.data_root == "/mnt/coco/"
    assert cfg.val_evaluator.ann_file == "/mnt/coco/annotations/instances_val2017.json"
    assert "data/coco" not in cfg.pretty_text
    cfg = load_config(repo / "configs/cascade_swin_t_coco.py", {"data_root": "s3://coco/"})
    assert cfg.val_evaluator.ann_file == "s3://coco/annotations/instances_val2017.json"


def test_options_and_work_dir(repo, tmp_path):
    path = repo / "configs/cascade_swin_t_coco.py"
    cfg = load_config(path, {"train_dataloader.batch_size": 7})
    assert cfg.train_dataloader.batch_size == 7
    assert cfg.work_dir == "work_dirs/cascade_swin_t_coco"
    assert load_config(path, work_dir=str(tmp_path)).work_dir == str(tmp_path)


def test_missing_config_is_named(repo):
    with pytest.raises(ConfigError, match=r"cascade_swin_x_coco\.py"):
        load_config(repo / "configs/cascade_swin_x_coco.py")


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_configs_are_python(tmp_path, suffix):
    """mmengine's reader of YAML runs code."""
    path, mark = tmp_path / f"hostile{suffix}", tmp_path / "PWNED"
    path.write_text(f'a: !!python/object/apply:os.system ["touch {mark}"]')
    with pytest.raises(ConfigError, match=r"expected \.py"):
        load_config(path)
    assert not mark.exists()
