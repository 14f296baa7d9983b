import pytest

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
