import pytest
import torch

from vitdense.mm.checks import batch_size
from vitdense.mm.checks.batch_size import (
    _on_cpu,
    _on_cuda,
    _try_sizes,
    largest,
    set_batch_size,
)
from vitdense.mm.config.base import Asked
from vitdense.mm.config.load import load_config
from vitdense.mm.errors import ConfigError
from vitdense.mm.memory import available_memory, bytes_of


@pytest.mark.parametrize(("room", "most", "found"), [(1, 16, 1), (3, 16, 3), (16, 16, 16), (40, 16, 16), (11, 12, 11)])
def test_largest(room, most, found):
    tried = []
    assert largest(lambda n: tried.append(n) or n <= room, 1, most) == found
    assert max(tried) <= min(2 * room, most)
    assert len(tried) == len(set(tried)) <= 7


def test_largest_of_many_is_found_to_an_eighth():
    assert 90 <= largest(lambda n: n <= 100, 1, 4096) <= 100


def test_one_step_that_is_too_much_is_an_error():
    with pytest.raises(ConfigError, match="a step of 2 images"):
        largest(lambda n: False, 2, 16)


def test_a_gpu_says_when_memory_is_out():
    def step(number):
        if number > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert largest(_on_cuda(step), 1, 64) == 5


def test_a_cpu_is_not_filled(monkeypatch):
    """Peaks say what the next size takes: 100 bytes an image, beside 50."""
    memory = {"VmRSS": 1000, "VmHWM": 1000}
    monkeypatch.setattr(batch_size, "bytes_of", lambda file, name: memory[name])
    taken = []

    def step(number):
        taken.append(number)
        memory["VmHWM"] = max(memory["VmHWM"], 1050 + 100 * number)

    assert largest(_on_cpu(step, room=1000), 1, 64) == 9
    assert max(taken) == 9


def test_memory_of_other_devices_is_not_tried(monkeypatch):
    monkeypatch.setattr(batch_size, "get_device", lambda: "mps")
    with pytest.raises(ConfigError, match="memory of mps"):
        set_batch_size(load_config("cascade_swin_nano_shapes"), Asked())


@pytest.mark.long
def test_sizes_are_tried_on_a_real_step(tmp_path, monkeypatch):
    pytest.importorskip("mmdet")
    assert 2**20 < bytes_of("/proc/self/status", "VmRSS") <= bytes_of("/proc/self/status", "VmHWM")
    assert available_memory() > 2**20
    cfg = load_config("cascade_rcnn_swin_nano_shapes")
    draw = dict(num_train=6, num_val=1, image_size=(96, 96))
    cfg.train_dataloader.dataset.update(data_root=str(tmp_path / "shapes"), draw=draw)
    tried = []
    monkeypatch.setattr(batch_size, "_on_cpu", lambda step, room: lambda n: tried.append(n) or step(n) is None)
    assert _try_sizes(cfg, 3) == 3
    assert tried == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [("launcher", "pytorch", "several processes"), ("auto_scale_lr", None, "base_batch_size")],
)
def test_what_is_refused(key, value, named):
    cfg = load_config("upernet_swin_nano_shapes")
    cfg[key] = value
    with pytest.raises(ConfigError, match=f"--batch-size auto.*{named}"):
        set_batch_size(cfg, Asked())
