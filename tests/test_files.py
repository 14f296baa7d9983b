import errno
import os
import resource

import pytest
import torch

from vitdense.checkpoint.convert import save
from vitdense.errors import OptionError
from vitdense.files import atomic_write, check_writable, describe_missing


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "a.json"

    def write_half():
        with atomic_write(path) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(path.parent.iterdir()) == []
    with atomic_write(path) as scratch:
        scratch.write_text("whole")
        assert not path.exists()
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert path.read_text() == "whole"


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_a_full_disk_is_an_error_of_the_file_that_is_written(tmp_path, name):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            save({"weight": torch.ones(10_000)}, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.filename == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_no_file_get_no_name(tmp_path):
    with pytest.raises(ConnectionResetError) as error, atomic_write(tmp_path / "a"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert error.value.filename is None


def test_unwritable_outputs_name_the_option_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "file/a", tmp_path / "file/b/c", tmp_path / "loop/a", "/proc/a"):
        with pytest.raises(OptionError, match="--out"):
            check_writable(path, "--out")
    check_writable(tmp_path / "new/folder/a", "--out")
    check_writable(tmp_path / "file", "--out")
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


def test_missing_files_have_near_names(tmp_path):
    (tmp_path / "pets_swin").mkdir()
    (tmp_path / "pets_swin/iter_3.pth").touch()
    assert f"{tmp_path}/pets_swin" in describe_missing(tmp_path / "pets_swim/iter_3.pth")
    assert "iter_3.pth" in describe_missing(tmp_path / "pets_swin/iter_4.pth")
    assert "mean" not in describe_missing(tmp_path / "something/else")
    assert "is a folder" in describe_missing(tmp_path)
