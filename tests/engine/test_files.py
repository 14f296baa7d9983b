import pytest

pytest.importorskip("mmengine")
from mmengine.fileio import get_file_backend

import vitdense.engine  # noqa: F401
from vitdense.files import atomic_write


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


def test_the_backend_for_checkpoints_keeps_the_old_file_when_a_write_fails(tmp_path):
    backend = get_file_backend(backend_args={"backend": "vitdense.atomic"})
    path = tmp_path / "c.pth"
    backend.put(b"old", str(path))
    with pytest.raises(TypeError):
        backend.put("not bytes", str(path))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["c.pth"]
