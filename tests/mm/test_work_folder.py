"""Work folders, also copied ones; what `--overwrite` moves, and what it leaves."""

import os
import re
import shutil

import pytest
import torch
from conftest import REPO
from safetensors.torch import save_file

from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.errors import OptionError
from vitdense.mm.config import passes
from vitdense.mm.config.files import find_config, named_files
from vitdense.mm.config.load import load_config
from vitdense.mm.config.print import ReadableConfig
from vitdense.mm.errors import ConfigError
from vitdense.mm.work_folder import WorkFolder, find_checkpoint

SAVED = "launcher = 'none'\nwork_dir = 'elsewhere'\nmodel = dict(type='A')\n"


def save(path, iterations):
    torch.save({"meta": {"iter": iterations}}, path)


def parts(folder):
    folder.mkdir()
    for name in ("shard-00001-model.safetensors", "shard-00002-model.safetensors"):
        save_file({"weight": torch.ones(4)}, folder / name)
    torch.save({"parts": {path.name: "digest" for path in folder.glob("shard-*")}}, folder / "rest.pth")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    for number in (9, 100):
        save(tmp_path / f"work/iter_{number}.pth", number)
    return WorkFolder(tmp_path / "work")


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def name_of(folder):
    return folder.latest and folder.latest.name


def test_the_latest_checkpoint_has_the_highest_number_whatever_its_time(folder):
    os.utime(folder.path / "iter_9.pth", (2e9, 2e9))
    for name in ("iter_200.pth.bak", "best_iter_300.pth", "iter_x.pth"):
        save(folder.path / name, 1)
    assert name_of(folder) == "iter_100.pth"
    cut(folder.path / "iter_100.pth")
    assert name_of(folder) == "iter_9.pth"
    cut(folder.path / "iter_9.pth")
    assert folder.latest is None
    with pytest.raises(CheckpointNotFoundError, match=r"iter_9\.pth, iter_100\.pth"):
        find_checkpoint(folder.path)


@pytest.mark.parametrize("noted", [None, "iter_100.pth", "iter_300.pth"])
def test_a_truncated_last_checkpoint_is_a_warning_or_refused(folder, capsys, noted):
    if noted:
        (folder.path / "last_checkpoint").write_text(noted)
    assert bool(folder.cut) == (noted == "iter_300.pth")  # which is absent
    cut(folder.path / "iter_100.pth")
    with pytest.raises(CheckpointNotFoundError, match=r"iter_100\.pth cut short.*iter_9\.pth"):
        find_checkpoint(folder.path, measured=True)
    assert find_checkpoint(folder.path) == str(folder.path / "iter_9.pth")
    said = capsys.readouterr()
    assert "iter_100.pth cut short" in said.out + said.err
    (folder.path / "last_checkpoint").write_text("iter_9.pth")
    assert not folder.cut


def test_epochs_and_iterations_are_compared_by_the_iterations_in_the_file(folder):
    for iterations, latest in ((50, "iter_100.pth"), (150, "epoch_3.pth")):
        save(folder.path / "epoch_3.pth", iterations)
        assert name_of(folder) == latest


@pytest.mark.parametrize("damage", ["no rest", "no part", "short part"])
def test_a_checkpoint_in_parts_is_complete_only_with_all_parts(folder, damage):
    path = folder.path / "iter_300.pth"
    parts(path)
    assert name_of(folder) == "iter_300.pth"
    part = path / ("rest.pth" if damage == "no rest" else "shard-00002-model.safetensors")
    cut(part) if damage == "short part" else part.unlink()
    assert name_of(folder) == "iter_100.pth"


@pytest.mark.parametrize(
    "noted", [b"", b"\xff\xfe\x00", b"\0" * 20, b"gone.pth", b"..", b"/", b"iter_9.pth/", "a folder", None]
)
def test_what_last_checkpoint_does_not_say_the_numbers_do(folder, noted):
    path = folder.path / "last_checkpoint"
    if noted == "a folder":
        path.mkdir()
        with pytest.raises(OptionError, match=r"last_checkpoint.*--work-dir"):
            folder.make()
    elif noted is not None:
        path.write_bytes(noted)
    assert name_of(folder) == "iter_100.pth"


@pytest.mark.parametrize("noted", ["{}/iter_9.pth", "work_dirs/old/iter_9.pth", r"C:\runs\iter_9.pth", "iter_9.pth\n"])
def test_last_checkpoint_names_a_file_in_the_folder(folder, tmp_path, monkeypatch, noted):
    (folder.path / "last_checkpoint").write_text(noted.format(folder.path))
    copy = tmp_path / "ein Ordner, ä"
    shutil.copytree(folder.path, copy)
    (tmp_path / "link").symlink_to(copy)
    monkeypatch.chdir(tmp_path)
    for name in (copy, copy.name, "link"):
        assert find_checkpoint(name) == os.path.join(name, "iter_9.pth")


def test_a_saved_config_is_of_the_folder_that_it_is_in(folder, tmp_path, monkeypatch):
    (folder.path / "pets.py").write_text(SAVED)
    (folder.path / "my_module.py").write_text("launcher = 1\n")  # of the run, or of the user
    monkeypatch.setattr(passes, "LOADING", passes.LOADING[-1:])
    for given in (folder.path, folder.path / "pets.py"):
        assert load_config(given).work_dir == str(folder.path)
        assert load_config(given, work_dir="other").work_dir == "other"
    shutil.copy(folder.path / "pets.py", tmp_path)  # to be edited, say: no run is here
    assert load_config(tmp_path / "pets.py").work_dir == "elsewhere"
    (folder.path / "second.py").write_text(SAVED)
    with pytest.raises(ConfigError, match="2 configs"):
        find_config(folder.path)


OF_A_RUN = (
    *("iter_9.pth", "iter_100.pth", "best_coco_bbox_mAP_iter_9.pth", "epoch_2.pth"),
    *("last_checkpoint", "curves.png", "pets.py", "20260101_101010", "test/20260101_111111", "test/pets.py"),
)
OF_THE_USER = (
    *("mine.pth", "weights.pth", "best_model.pth", "iter_9.pth.bak", "notes.txt", "swin_iter.pth", "my_module.py"),
    *("epoch_2", "20260101.log", "2026", "test/pictures", "export.onnx", "ITER_5.PTH", "photos/iter_5.pth"),
)


@pytest.fixture
def full(folder):
    for name in (*OF_A_RUN, *OF_THE_USER):
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        if re.search(r"\d{8}_\d{6}$|photos$|pictures$|2026$", name):
            path.mkdir(exist_ok=True)
            (path / "file").write_text("content")
        elif not path.exists():
            path.write_text(SAVED if path.name == "pets.py" else name)
    return folder


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_moved_aside_with_exactly_its_own_files(full):
    before = names(full.path)
    current = full.path / "20260202_202020"
    current.mkdir()
    aside = full.move_aside((), current)
    assert aside == full.path / "replaced_1"
    of_the_run = {name for name in before if any(name == own or name.startswith(f"{own}/") for own in OF_A_RUN)}
    assert {name for name in before if (aside / name).exists()} == of_the_run
    assert {name.removeprefix("replaced_1/") for name in names(full.path)} == before  # nothing is lost
    assert current.is_dir()
    assert name_of(WorkFolder(aside)) == "iter_100.pth"
    assert find_config(aside) == aside / "pets.py"
    assert full.move_aside((), current) is None
    save(full.path / "iter_1.pth", 1)
    assert full.move_aside((), current).name == "replaced_2"


@pytest.mark.parametrize("key", ["load_from", "model"])
def test_what_the_config_names_is_not_moved(full, monkeypatch, key):
    """A checkpoint is refused before; of a config that is a base the old training gets a copy."""
    monkeypatch.chdir(full.path.parent)
    named = "work/iter_100.pth"
    node = named if key == "load_from" else {"neck": [{"init_cfg": {"checkpoint": f"./{named}"}}]}
    config = str(full.path / "pets.py")
    files = named_files(ReadableConfig({key: node}, filename=config))
    with pytest.raises(ConfigError, match=r"--overwrite.*iter_100\.pth"):
        full.check_replaceable(files)
    files = named_files(ReadableConfig({}, filename=config))
    full.check_replaceable(files)
    aside = full.move_aside(files, full.path / "now")
    assert (full.path / "pets.py").read_text() == (aside / "pets.py").read_text() == SAVED
    assert not (full.path / "iter_100.pth").exists()


def test_modules_of_the_old_training_are_with_it(full):
    (full.path.parent / "my_module.py").write_text("new")
    aside = full.move_aside((), "now", [full.path.parent / "my_module.py"])
    assert (aside / "my_module.py").read_text() == "my_module.py"
    assert (full.path / "my_module.py").read_text() == "my_module.py"


def test_a_config_of_the_user_is_not_replaced(folder):
    path = folder.path / "pets.py"
    path.write_text("_base_ = 'other.py'\n")
    with pytest.raises(ConfigError, match=r"pets\.py.*--work-dir"):
        folder.check_config(ReadableConfig({}, filename=str(path)))
    path.write_text(SAVED)
    folder.check_config(ReadableConfig({}, filename=str(path)))


def test_weights_of_a_checkpoint_in_parts_are_the_runs(full):
    parts(full.path / "iter_300.pth")
    assert {"weights.pth", "iter_300.pth"} <= {path.name for path in full.move_aside((), "now").iterdir()}


@pytest.mark.parametrize("name", ["file", "loop", "/proc/no_permission"])
def test_folders_that_cannot_be_written_name_the_option(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OptionError, match="--work-dir"), WorkFolder(tmp_path / name).hold():
        pass


def test_missing_folders_and_files_have_near_names(folder):
    for missing in ("wrok", "wrok/iter_9.pth"):
        with pytest.raises(CheckpointNotFoundError, match=r"no .*wrok; did you mean .*work\?"):
            find_checkpoint(folder.path.parent / missing)
    with pytest.raises(CheckpointNotFoundError, match=r"did you mean .*iter_9\.pth"):
        find_checkpoint(folder.path / "iter_8.pth")


def test_only_this_module_knows_the_names():
    """So that two cannot disagree on which file is the latest."""
    words = re.compile(r"last_checkpoint|glob\([^)]*\.pth|latest_checkpoint")
    files = [path for part in ("vitdense", "tools", "scripts") for path in (REPO / part).rglob("*.py")]
    found = {path.name for path in files if words.search(re.sub(r'"""[\s\S]*?"""', "", path.read_text("utf-8")))}
    assert found == {"work_folder.py"}


def test_a_folder_whose_name_is_not_utf8_is_refused_before_the_work(tmp_path):
    with pytest.raises(OptionError, match="--work-dir"):
        WorkFolder(os.fsdecode(os.fsencode(tmp_path) + b"/f\xe9")).make()
    assert not [*tmp_path.iterdir()]
    WorkFolder(tmp_path / "h\xfcndin").make()
