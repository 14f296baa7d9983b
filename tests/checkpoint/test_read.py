"""Reading every kind of file and address, and the errors. No test needs a network."""

import hashlib
import logging
import os
import pickle
import re
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from conftest import REPO, assert_same_tensors, timm_since
from safetensors.torch import save_file
from timm.models.vision_transformer import ParallelThingsBlock, ResPostBlock, VisionTransformer
from torchvision.models import get_model_weights

from vitdense import ViT, create
from vitdense.checkpoint import read as read_module
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.errors import CheckpointMismatchError, CheckpointNotFoundError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.read import LogHistory, read
from vitdense.families import MODELS, Model, row_of, ungated_twin
from vitdense.models.vit.sizes import VIT
from vitdense.models.vit.timm_parts import parts_in_timm

TINY = {"embed_dims": 8, "depths": (1, 1), "num_heads": (1, 2)}
KINDS = ("zip.pth", "legacy.pt", "torch.pkl", "safe.safetensors", "detectron2.pkl")


def tensors():
    generator = torch.Generator().manual_seed(1)
    return {
        "a.weight": torch.randn(30, 40, generator=generator),
        "a.count": torch.tensor(7),
        "b": torch.arange(6, dtype=torch.int32).reshape(2, 3),
        "empty": torch.zeros(0, 3),
    }


def write(path, state=None):
    state = tensors() if state is None else state
    arrays = {key: value.numpy() for key, value in state.items()}
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.name.startswith("detectron2"):
        path.write_bytes(pickle.dumps({"model": arrays, "__author__": "somebody", "matching_heuristics": True}))
    else:
        torch.save({"state_dict": state}, path, _use_new_zipfile_serialization="legacy" not in path.name)
    return path


def inner(saved):
    return saved.get("state_dict", saved.get("model", saved))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(folder))
    return folder


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(f"{self.command} {self.path}")
        found = server.files.get(self.path)
        self.send_response(server.status if found is None else 200)
        headers = {"X-Error-Code": "EntryNotFound"} if found is None else server.headers
        for name, value in {"Content-Length": str(len(found or b"")), **headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(found or b"")
            self.wfile.flush()

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.headers, self.asked, self.status = {}, {}, [], 404
        self.host = f"127.0.0.1:{self.server_port}"
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, path, content):
        self.files[path] = content
        return f"http://{self.host}{path}"

    def stop(self):
        self.shutdown()
        self.server_close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.mark.parametrize("name", KINDS)
def test_every_file_format_gives_the_same_tensors_whatever_its_name(tmp_path, name):
    path = write(tmp_path / name)
    assert_same_tensors(inner(read(path)), tensors())
    assert_same_tensors(inner(read(str(path), sha256=sha256(path)[:8].upper())), tensors())
    assert_same_tensors(inner(read(path.rename(tmp_path / "weights.bin"))), tensors())


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_arrays(tmp_path, protocol):
    arrays = OrderedDict(
        f32=np.arange(6, dtype=np.float32).reshape(2, 3),
        big_endian=np.arange(3, dtype=">i4"),
        fortran=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        strided=np.arange(6.0)[::2],
        flag=np.array([True, False]),
        empty=np.zeros((0, 4), np.float16),
        count=np.array(7),
    )
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(arrays, protocol=protocol))
    got = read(tmp_path / "a.pkl")
    assert got.keys() == arrays.keys()
    for key, value in arrays.items():
        assert got[key].dtype == torch.from_numpy(value.astype(value.dtype.newbyteorder("="))).dtype
        assert np.array_equal(got[key].numpy(), value), key
    got["f32"].add_(1)  # its memory is its own


def test_pickle_of_python_2_needs_allow_pickle(tmp_path):
    raw = np.array([1.5, -2], np.float32).tobytes()
    parts = (
        b"\x80\x02}U\x01wcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R",
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08" + raw + b"tbs.",
    )
    (tmp_path / "a.pkl").write_bytes(b"".join(parts))
    with pytest.raises(CheckpointMismatchError, match=r"a\.pkl"):
        read(tmp_path / "a.pkl")
    assert read(tmp_path / "a.pkl", allow_pickle=True)["w"].tolist() == [1.5, -2]


def test_map_location(tmp_path):
    assert inner(read(write(tmp_path / "a.pth"), map_location="meta"))["b"].device.type == "meta"
    assert inner(read(tmp_path / "a.pth", map_location=lambda storage, where: storage))["b"].device.type == "cpu"
    write(tmp_path / "a.safetensors")
    assert read(tmp_path / "a.safetensors", map_location=torch.device("meta"))["b"].device.type == "meta"
    assert read(tmp_path / "a.safetensors", map_location=None)["b"].device.type == "cpu"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_truncated_file_names_the_path(tmp_path, name, share):
    path = write(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointMismatchError, match=str(path)):
        read(path)


def photos(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("holiday.jpg", b"")


NOT_WEIGHTS = {  # content, and what the error names
    "random": (np.random.default_rng(5).bytes(4000), r"random\.pth"),
    "text": (b"hello world", "b'hello world'"),
    "page": (b"\n<!DOCTYPE html><html>Sign in</html>", "<!DOCTYPE html>"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "git-lfs"),
    "photos": (photos, r"photos\.pth"),
    "tensor": (partial(torch.save, torch.ones(2)), "Tensor"),
    "module": (partial(torch.save, torch.nn.Linear(2, 2)), r"torch\.nn\.modules\.linear\.Linear"),
    "many tensors": ((10**8).to_bytes(8, "little") + b'{"a', "header of 100000000 bytes"),
    "long text": (b"\x80\x04\x8e" + (10**15).to_bytes(8, "little") + b"a.", "MemoryError"),
}


@pytest.mark.parametrize("name", NOT_WEIGHTS)
def test_file_that_is_no_checkpoint_is_refused(tmp_path, name):
    content, message = NOT_WEIGHTS[name]
    path = tmp_path / f"{name}.pth"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    for allow_pickle in (False, True):
        with pytest.raises(CheckpointMismatchError, match=message.rpartition(".")[2] if allow_pickle else message):
            read(path, allow_pickle=allow_pickle)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}/mime.pth", r"did you mean .*mine\.pth"),
        ("{}", r"is a folder"),
        ("ftp://host/a.pth", r"got ftp://, expected one of https://.*timm://"),
        ("swin_tiny.ms_in1x", r"swin_tiny\.ms_in1k"),
        ("swinv2_giant", "swinv2_giant"),
        ("torchvision://swin_tt", "swin_tt"),
        ("torchvision://swin_t.v9", "swin_t.v9"),
    ],
)
def test_missing_file_or_unknown_name_is_not_found(tmp_path, name, message):
    (tmp_path / "mine.pth").touch()
    with pytest.raises(CheckpointNotFoundError, match=message) as error:
        read(name.format(tmp_path))
    assert "init_cfg" not in str(error.value)  # of commands without one
    with pytest.raises(CheckpointNotFoundError, match=r"nowhere\.pth.*pretrained=False"):
        create("swin_tiny", pretrained=tmp_path / "nowhere.pth")


def test_name_of_the_model_table_is_read_and_its_digest_checked(tmp_path, monkeypatch):
    path = write(tmp_path / "nano.pth")
    row = Model("nano.ours", "nano", "Swin", "tiny", str(path), sha256=sha256(path)[:12])
    monkeypatch.setitem(MODELS, "nano.ours", row)
    monkeypatch.chdir(tmp_path)
    assert_same_tensors(inner(read("nano.ours")), tensors())
    write(tmp_path / "other.pth", {"b": torch.ones(1)}).rename(path)
    with pytest.raises(CheckpointMismatchError, match=sha256(path)[:12]):  # the row's digest is checked
        read("nano.ours")
    write(tmp_path / "own.safetensors").rename(tmp_path / "nano.ours")  # a file of that name comes first
    assert "state_dict" not in read("nano.ours")


class Call:
    """Pickles as a call of a function and, after it, `__setstate__` with a state."""

    def __init__(self, function, arguments, *state):
        self.call = (function, arguments, *state)

    def __reduce__(self):
        return self.call


def malicious(path, proof):
    holds = {"model": {"a": np.ones(1)}, "x": Call(os.mkdir, (str(proof),))}  # leaves a folder behind
    if path.name.startswith("detectron2"):
        path.write_bytes(pickle.dumps(holds))
    else:
        torch.save(holds, path, _use_new_zipfile_serialization="legacy" not in path.name)
    return path


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pt", "torch.pkl", "detectron2.pkl"])
def test_code_runs_only_with_allow_pickle(tmp_path, name):
    proof = tmp_path / "ran"
    path = malicious(tmp_path / name, proof)
    with pytest.raises(CheckpointMismatchError, match=rf"{os.mkdir.__module__}\.mkdir.*allow_pickle=True"):
        read(path)
    assert not proof.exists()
    assert torch.equal(torch.as_tensor(read(path, allow_pickle=True)["model"]["a"]), torch.ones(1).double())
    assert proof.exists()


ARRAY, EMPTY = np.array(0).__reduce__()[0], (np.ndarray, (0,), b"b")  # as numpy pickles an array, before its content


@pytest.mark.parametrize(
    "call",
    [
        (np.ndarray, ((1,), "O", b"12345678")),
        (ARRAY, EMPTY, (1, (1,), np.dtype("O"), False, b"12345678")),
        (ARRAY, EMPTY, (1, (1,), np.dtype([("a", "O")]), False, b"12345678")),
        (np.frombuffer, (b"12345678",)),
        (eval, ("1",)),
        (getattr, (np.ndarray, "tofile")),
        (ARRAY, (np.ndarray, (3,), b"b")),
        (ARRAY, EMPTY, (1, (9,), np.dtype("f8"), False, b"12345678")),
        (ARRAY, EMPTY, (1, (1,), np.dtype("f8"), False, [1.0])),
    ],
    ids=["object buffer", "object type", "fields", "function", "eval", "getattr", "no content", "short", "objects"],
)
def test_plain_pickle_cannot_call_functions_or_build_object_arrays(tmp_path, call):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": Call(*call)}))
    with pytest.raises(CheckpointMismatchError):
        read(tmp_path / "a.pkl")


def test_allow_lists_further_types(tmp_path):
    torch.save({"when": struct.Struct}, tmp_path / "a.pth")
    with pytest.raises(CheckpointMismatchError, match=r"_struct\.Struct"):
        read(tmp_path / "a.pth")
    assert read(tmp_path / "a.pth", allow=[struct.Struct])["when"] is struct.Struct


def test_log_history_of_a_run_is_dropped(tmp_path):
    """mmengine saves log buffers in addition to the weights. Reading replaces them and needs no mmengine."""
    logging = pytest.importorskip("mmengine.logging")
    hub = {"log_scalars": {"train/loss": logging.HistoryBuffer([1.0, 2.0], [1, 1])}}
    torch.save({"state_dict": tensors(), "message_hub": hub}, tmp_path / "epoch_1.pth")
    saved = read(tmp_path / "epoch_1.pth")
    assert_same_tensors(saved["state_dict"], tensors())
    assert type(saved["message_hub"]["log_scalars"]["train/loss"]) is LogHistory


@pytest.mark.parametrize("owner", [torch.Tensor, LogHistory])
def test_getattr_in_a_checkpoint_is_refused_except_for_log_buffers(tmp_path, owner):
    torch.save({"x": Call(getattr, (owner, "__init__"))}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointMismatchError, match="without running code"):
        read(tmp_path / "bad.pth")


@pytest.mark.parametrize("wrong", ["", "abcdef1", "abcdefgh", "0" * 65, "sha256:abcdef12"])
def test_invalid_sha256_is_refused(wrong):
    with pytest.raises(ValueError, match="sha256: "):
        read("nowhere.pth", sha256=wrong)


def test_digest_is_checked_before_the_file_is_read(tmp_path):
    path = malicious(tmp_path / "a.pth", tmp_path / "ran")
    got = sha256(path)[:10]
    with pytest.raises(CheckpointMismatchError, match=f"begins with {got}, expected {'0' * 10}"):
        read(path, sha256="0" * 10, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", KINDS)
def test_url_is_downloaded_once(tmp_path, server, cache, name):
    path = write(tmp_path / name)
    address = server.serve(f"/models/{name}", path.read_bytes())
    assert_same_tensors(inner(read(address, sha256=sha256(path))), tensors())
    server.stop()
    assert_same_tensors(inner(read(address)), tensors())
    assert server.asked == [f"HEAD /models/{name}", f"GET /models/{name}"]
    with pytest.raises(CheckpointMismatchError, match="expected 00000000"):
        read(address, sha256="00000000")
    assert_same_tensors(inner(read(address)), tensors())  # whose digest was wrong is not known: the file stays


def test_cache_separates_files_of_the_same_name_and_drops_the_query(tmp_path, server, cache):
    first = server.serve("/one/model.pth", write(tmp_path / "a.pth").read_bytes())
    second = server.serve("/two/model.pth?download=true", write(tmp_path / "b.safetensors").read_bytes())
    assert "state_dict" in read(first)
    assert "state_dict" not in read(second)
    assert sorted(p.name for p in kept(cache)) == ["model.pth", "model.pth"]


def kept(cache):
    return [p for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_download_with_another_digest_is_not_kept(tmp_path, server, cache):
    path = write(tmp_path / "a.pth")
    address = server.serve("/a.pth", path.read_bytes())
    with pytest.raises(CheckpointMismatchError, match=rf"begins with {sha256(path)[:8]}, expected abcdef12"):
        read(address, sha256="abcdef12")
    address = server.serve("/a-abcdef12.pth", path.read_bytes())
    with pytest.raises(CheckpointMismatchError, match=r"a-abcdef12\.pth begins with .* expected abcdef12"):
        read(address)
    assert kept(cache) == []
    for name in (f"/a-{sha256(path)[:8]}.pth", "/a-20210725.pth"):
        assert_same_tensors(inner(read(server.serve(name, path.read_bytes()))), tensors())


def test_download_that_is_no_checkpoint_is_not_kept(tmp_path, server, cache):
    with pytest.raises(CheckpointMismatchError, match=r"/a\.pth is not kept: .*<html>"):
        read(server.serve("/a.pth", b"<html><body>moved</body></html>"))
    path = malicious(tmp_path / "code.pth", tmp_path / "ran")
    address = server.serve("/code.pth", path.read_bytes())
    with pytest.raises(CheckpointMismatchError, match="allow_pickle=True"):
        read(address)
    assert kept(cache) == []
    assert "model" in read(address, allow_pickle=True)


def test_unreachable_url_is_not_found(tmp_path, server, cache, monkeypatch):
    with pytest.raises(CheckpointNotFoundError, match=r"other\.pth cannot be downloaded.*404") as e:
        read(f"http://{server.host}/other.pth")
    assert isinstance(e.value.__cause__, OSError)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(CheckpointNotFoundError, match=r"Connection refused.*shapes_nano"):
            read(f"http://127.0.0.1:{closed.getsockname()[1]}/a.pth")

    def no_name(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(CheckpointNotFoundError, match="Name or service not known"):
        read("https://nowhere.invalid/a.pth")
    assert kept(cache) == []


def test_a_file_that_has_no_room_is_not_downloaded(server, cache, tmp_path, monkeypatch):
    address = server.serve("/a.pth", b"1000 bytes" * 100)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *args, **options: SimpleNamespace(size=1000))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=999))
    for name, variable in ((address, "TORCH_HOME"), ("hf://somebody/own/a.pth", "HF_HOME")):
        with pytest.raises(CheckpointNotFoundError, match=f"free some.*{variable}"):
            read(name)
    assert server.asked == ["HEAD /a.pth"]
    assert kept(cache) == []


@pytest.mark.parametrize("name", KINDS)
def test_download_that_ends_early_is_not_kept(tmp_path, server, cache, name):
    content = write(tmp_path / name).read_bytes()
    address = server.serve(f"/{name}", content[:-20])
    for length in (str(len(content)), None):
        server.headers = {"Content-Length": length, "Connection": "close"}
        with pytest.raises(CheckpointMismatchError, match=rf"/{name} is not kept"):
            read(address)
    assert kept(cache) == []


def test_concurrent_downloads_leave_one_complete_file(tmp_path, server, cache):
    content = write(tmp_path / "a.pth").read_bytes()
    address = server.serve("/a.pth", content)
    with ThreadPoolExecutor(8) as pool:
        for saved in pool.map(read, [address] * 16):
            assert_same_tensors(inner(saved), tensors())
    assert [path.read_bytes() == content for path in kept(cache)] == [True]
    assert server.asked == ["HEAD /a.pth", "GET /a.pth"]  # one of them downloads, the others wait for it


def test_openmmlab_url_is_downloaded_from_the_mirror(tmp_path, server, cache, monkeypatch, caplog):
    assert read_module.MIRRORS == {"download.openmmlab.com": "mmassets.onedl.ai"}
    monkeypatch.setitem(read_module.MIRRORS, "download.openmmlab.com", server.host)
    server.serve("/mmdetection/v2.0/a.pth", write(tmp_path / "a.pth").read_bytes())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert_same_tensors(inner(read("http://download.openmmlab.com/mmdetection/v2.0/a.pth")), tensors())
    (line,) = caplog.messages
    assert line.startswith("the host of http://download.openmmlab.com/mmdetection/v2.0/a.pth is gone")
    assert f"http://{server.host}/mmdetection/v2.0/a.pth" in line


HUB = """
import sys, torch
from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.checkpoint.read import read
torch.manual_seed(0)
state = torch.random.get_rng_state()
for address in sys.argv[1:]:
    try:
        saved = read(address)
        saved = saved.get("state_dict", saved)
        print("read", len(saved), float(sum(v.double().sum() for v in saved.values())))
    except CheckpointNotFoundError as error:
        print("not found", error)
    except ValueError as error:
        print(type(error).__name__, error)
assert torch.equal(state, torch.random.get_rng_state())  # reading changes nothing that is drawn after
"""


def ask_hub(folder, endpoint, *addresses, **variables):
    """Lines that `HUB` prints; in a process of its own, for the libraries read the environment when imported."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))},
        **{"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(REPO)},
        **{"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **variables},
    }
    done = subprocess.run(
        [sys.executable, "-c", HUB, *addresses], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("model", ["test_vit", "test_vit2", "vit_tiny_patch16_224", "swinv2_cr_tiny_ns_224"])
def test_timm_renames_without_a_second_model_in_memory(model):
    state = timm.create_model(model).state_dict()
    before = torch.random.get_rng_state()
    renamed, built = read_module.renamed_by_timm(model, state)
    assert all(t.is_meta for t in built.state_dict().values())
    assert_same_tensors(renamed, state)
    assert {t.data_ptr() for t in renamed.values()} == {t.data_ptr() for t in state.values()}  # nor a second file
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not next(torch.nn.Linear(2, 3).parameters()).is_meta  # what is built later has its memory
    state.pop(next(iter(state)))
    with pytest.raises(CheckpointMismatchError, match=f"timm://{model} does not fit"):
        read_module.renamed_by_timm(model, state)
    assert not next(torch.nn.Linear(2, 3).parameters()).is_meta


def test_what_timm_makes_up_is_left_out():
    """Counters of batch norms, which files from before torch 0.4.1 lack; a bias that files of CLIP lack."""
    state = timm.create_model("test_resnet").state_dict()
    old = {name: t for name, t in state.items() if not name.endswith("num_batches_tracked")}
    renamed, _ = read_module.renamed_by_timm("test_resnet", old)
    assert_same_tensors(renamed, old)
    clip = timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict()
    clip = {f"visual.trunk.{name}": t for name, t in clip.items()} | {"visual.head.proj.weight": torch.ones(1000, 192)}
    renamed, _ = read_module.renamed_by_timm("vit_tiny_patch16_224", clip)
    assert torch.equal(renamed["head.weight"], torch.ones(1000, 192))
    assert "head.bias" not in renamed
    assert len(renamed) == len(clip)


@pytest.mark.long
def test_hugging_face_hub_and_timm_models(tmp_path, server):
    model = timm.create_model("test_vit").state_dict()
    save_file({key: value.contiguous() for key, value in model.items()}, tmp_path / "timm.safetensors")
    total = float(sum(v.double().sum() for v in model.values()))
    own = write(tmp_path / "own.safetensors", {"a": torch.full((3,), 2.0)}).read_bytes()
    for revision in ("main", "v1"):
        server.serve(f"/somebody/nets/resolve/{revision}/swin/own.safetensors", own)
    server.serve(
        "/timm/test_vit.r160_in1k/resolve/main/model.safetensors", (tmp_path / "timm.safetensors").read_bytes()
    )
    server.serve("/timm/test_vit2.r160_in1k/resolve/main/model.safetensors", own)
    server.headers = {"ETag": '"e1"', "X-Repo-Commit": "1" * 40}
    found = {  # by address: what is printed, as a regular expression
        "hf://somebody/nets/swin/own.safetensors": r"read 1 6\.0$",
        "hf://somebody/nets@v1/swin/own.safetensors": r"read 1 6\.0$",
        "timm://test_vit.r160_in1k": f"read {len(model)} {total}$",
        "timm://test_vit": f"read {len(model)} {total}$",  # the same, by its default
    }
    wrong = {
        "hf://somebody/nets/other.pth": "not found checkpoint hf://somebody/nets/other.pth cannot be downloaded.*404",
        "hf://nets/other.pth": "expected hf://owner/repo/path/in/repo",
        "timm://test_vit2.r160_in1k": "CheckpointMismatchError the file of timm://test_vit2.r160_in1k does not fit",
        "timm://test_vitt.r160_in1k": "timm://test_vitt.r160_in1k",
    }
    no_file = "not found checkpoint hf://.*{} cannot be downloaded from the Hugging Face hub.*HF_HUB_OFFLINE"
    missing = {
        "hf://somebody/nets/own.safetensors": no_file.format("nets/own.safetensors"),
        "timm://test_convnext.r160_in1k": no_file.format("test_convnext.r160_in1k/model.safetensors"),
    }
    hub = tmp_path / "hub"
    hub.mkdir()
    for expected, variables in ((found | wrong, {}), (found | missing, {"HF_HUB_OFFLINE": "1"})):
        lines = ask_hub(hub, f"http://{server.host}", *expected, **variables)
        for line, pattern in zip(lines, expected.values(), strict=True):
            assert re.search(pattern, line)
        server.stop()  # without a network: what is in the cache
    asked = [line.split()[0] for line in server.asked if "test_vit.r160" in line]
    assert asked.count("GET") == 1  # the second time it was in the cache


META = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"


def refused_by_hub(status, kind):
    httpx = pytest.importorskip("httpx")
    answer = httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/x"))

    def ask(*address, **options):
        try:
            answer.raise_for_status()
        except httpx.HTTPStatusError as cause:
            error = getattr(huggingface_hub.errors, kind)("no", response=answer)
            if kind != "HfHubHTTPError":
                raise error from cause
            raise huggingface_hub.errors.LocalEntryNotFoundError("An error happened") from error

    return ask


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, "GatedRepoError"), (401, "RepositoryNotFoundError"), (403, "HfHubHTTPError"), (404, "HfHubHTTPError")],
)
@pytest.mark.parametrize(
    ("address", "page", "twin"),
    [
        ("hf://facebook/dinov3-vitb16-pretrain-lvd1689m/a.pth", "facebook/dinov3-vitb16-pretrain-lvd1689m", "base"),
        ("timm://vit_large_patch16_dinov3_qkvb.sat493m", "timm/vit_large_patch16_dinov3_qkvb.sat493m", "large"),
        ("dinov3_small", "timm/vit_small_patch16_dinov3_qkvb.lvd1689m", "small"),
        ("dinov3_7b.fb_sat493m", "timm/vit_7b_patch16_dinov3.sat493m", None),
        ("hf://somebody/own@main/model.safetensors", "somebody/own", None),
    ],
)
def test_hub_that_asks_for_consent(monkeypatch, address, page, twin, status, kind):
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refused_by_hub(status, kind))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **options: None)
    with pytest.raises(CheckpointNotFoundError) as error:
        read(address)
    message = str(error.value)
    if status == 404:
        assert not re.search(f"hf auth login|no gate|{META}", message)
        return
    assert f"HTTP {status}" in message
    assert f"https://huggingface.co/{page}{f' or {META}' if 'dinov3' in page else ''};" in message
    assert "`hf auth login` or HF_TOKEN" in message
    assert ("no gate" in message) == (twin is not None)
    assert twin is None or f"take lingbot_{twin}.robbyant," in message


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize(
    ("file", "twin"),
    [
        ("dinov3_vits16_pretrain_lvd1689m-08c60483.pth", "lingbot_small.robbyant"),
        ("dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth", "lingbot_large.robbyant"),
        ("dinov3_vith16plus_pretrain_lvd1689m-7c1da9a5.pth", None),
    ],
)
def test_host_of_the_authors_that_asks_for_consent(server, cache, file, twin, status):
    server.status = status
    with pytest.raises(CheckpointNotFoundError) as error:
        read(f"http://{server.host}/{file}")
    message = str(error.value)
    assert (f"HTTP {status}" in message) == (META in message) == (status != 404)
    assert ("no gate" in message) == (twin is not None and status != 404)
    assert "hf auth login" not in message  # a token of the hub is of no use here
    assert "no gate" not in message or twin in message


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.gate])
def test_files_behind_a_gate_are_known_by_the_authors_names(name):
    row = MODELS[name]
    size, data = row.model.removeprefix("dinov3_"), name.partition("fb_")[2]
    letters = {"small_plus": "s16plus", "huge_plus": "h16plus", "7b": "7b16"}.get(size, f"{size[0]}16")
    trunk = size if size.startswith("convnext") else f"vit{letters}"
    for address in (
        f"hf://facebook/dinov3-{trunk.replace('_', '-')}-pretrain-{data}/a.pth",
        f"x/dinov3_{trunk}_pretrain_{data}-0",
    ):
        assert row_of(address) is row
    assert row_of(read_module.timm_address(row.weights.removeprefix("timm://"))) is row
    twins = {size: f"lingbot_{size}" for size in ("small", "base", "large")}
    twin = ungated_twin(row)
    assert (twin.model if twin else None) == twins.get(size, size if size.startswith("convnext") else None)


@timm_since("1.0.31")
def test_weights_of_the_model_table_exist_in_timm_or_torchvision():
    for name, row in MODELS.items():
        host, _, model = (row.weights or "").partition("://")
        if host in ("timm", "hf"):
            model = model.removeprefix("timm/").removesuffix("/model.safetensors")
            assert timm.is_model_pretrained(model), name
            assert host == "hf" or read_module.timm_address(model).startswith(("hf://timm/", "hf://belfner/")), name
        elif host == "torchvision":
            model, _, version = model.partition(".")
            assert version in ("", *(weights.name for weights in get_model_weights(model))), name


SMALL = {"img_size": 32, "embed_dim": 64, "depth": 1, "num_heads": 2}  # of a ViT of timm


def downloaded_as(model, monkeypatch):
    """Whatever address of timm is read gives this model."""
    monkeypatch.setattr(read_module, "fetch", lambda address, sha256, load: tensors())
    monkeypatch.setattr(read_module, "renamed_by_timm", lambda name, state: (model.state_dict(), model))


class TestTimmViTs:
    """Parameters do not show everything that a ViT of timm computes; the model that timm builds does."""

    def test_rotary_positions_are_refused(self, tmp_path, monkeypatch):
        model = timm.create_model("vit_small_patch16_rope_ape_224", **SMALL)
        options = {"arch": {"embed_dims": 64, "depth": 1, "num_heads": 2, "token_position": False, "layer_scale": 1.0}}
        ours = ViT(**options, out_norm="none", pretrain_img_size=32)
        assert load_pretrained(ours, model.state_dict()).share == 1  # of its file alone nobody can tell
        downloaded_as(model, monkeypatch)
        with pytest.raises(CheckpointMismatchError, match=r"timm's model has .*RotaryEmbedding"):
            load_pretrained(ours, "timm://test_vit")
        with pytest.raises(CheckpointMismatchError, match=r"timm's model has .*RotaryEmbedding"):
            convert(read("timm://test_vit"), "vitdense")

    @pytest.mark.parametrize(
        ("options", "unknown"),
        [({"act_layer": "quick_gelu"}, "QuickGELU"), ({"block_fn": ResPostBlock}, "ResPostBlock")],
    )
    def test_parts_that_ours_has_not_are_refused(self, options, unknown):
        with pytest.raises(CheckpointMismatchError, match=f"timm's model has .*{unknown}"):
            parts_in_timm(VisionTransformer(**SMALL, **options))
        parts = parts_in_timm(VisionTransformer(**SMALL, block_fn=ParallelThingsBlock))
        assert parts == {"norm_eps": 1e-6, "rope": None, "ffn": "mlp"}

    @pytest.mark.parametrize(
        ("options", "part"),
        [
            ({}, {}),
            ({"act_layer": "gelu_tanh"}, {"ffn": "mlp_tanh"}),
            ({"act_layer": partial(torch.nn.GELU, approximate="tanh")}, {"ffn": "mlp_tanh"}),
            ({"norm_layer": partial(torch.nn.LayerNorm, eps=1e-5)}, {"norm_eps": 1e-5}),
        ],
    )
    def test_parts_without_parameters_must_match_the_model(self, options, part, monkeypatch):
        downloaded_as(VisionTransformer(**{**SMALL, **options}), monkeypatch)
        arch = {"embed_dims": 64, "depth": 1, "num_heads": 2}
        same = ViT({**arch, **part}, out_norm="none", pretrain_img_size=32)
        assert load_pretrained(same, "timm://test_vit").share == 1
        if part:
            (name,) = part
            with pytest.raises(CheckpointMismatchError, match=f"trained with {name}="):
                load_pretrained(ViT(arch, out_norm="none", pretrain_img_size=32), "timm://test_vit")

    @pytest.mark.long
    def test_every_vit_of_the_table_is_accepted(self):
        rows = [row for row in MODELS.values() if row.family == "ViT" and (row.weights or "").startswith("timm://")]
        for name, row in {row.weights.removeprefix("timm://").partition(".")[0]: row for row in rows}.items():
            with torch.device("meta"):
                model = timm.create_model(name, depth=1)
            for part, value in parts_in_timm(model).items():
                assert getattr(VIT[row.arch], part) == value, (name, part)


def test_http_needs_a_digest(cache):
    with pytest.raises(CheckpointNotFoundError, match=r"http://.* without a digest.*https"):
        read("http://example.invalid/model.pth")
    with pytest.raises(CheckpointNotFoundError, match="cannot be downloaded"):
        read("http://example.invalid/model.pth", sha256="0" * 64)
