"""Where weights come from: local files, addresses, hubs and short names, read without running code from them."""

import difflib
import hashlib
import http.client
import logging
import os
import pickle
import re
import urllib.request
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitdense.files import whole_file
from vitdense.weights.rename import CheckpointMismatchError
from vitdense.weights.sources import NAMED

logger = logging.getLogger(__name__)

# Hosts that are gone, and who serves their files under the same paths. OpenMMLab's expired in 2026.
MIRRORS = {"download.openmmlab.com": "mmassets.onedl.ai"}
SCHEMES = ("https://", "http://", "hf://owner/repo/file", "timm://model", "torchvision://model")
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors", ".pkl", ".npz")
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20  # bytes

_multiarray = np.core.multiarray if np.lib.NumpyVersion(np.__version__) < "2.0.0" else np._core.multiarray
# Of numpy arrays and scalars: data, not code.
NUMPY_GLOBALS = (
    *(
        (getattr(_multiarray, name), f"numpy.{core}.multiarray.{name}")  # of files written under numpy 1 and 2
        for name in ("_reconstruct", "scalar")
        for core in ("core", "_core")
    ),
    bytes,  # of an empty array
    np.ndarray,
    np.dtype,
    *{type(np.dtype(t)) for t in ("float64", "float32", "int64", "int32", "uint32", "uint8", "bool")},
)

TORCH_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"  # 0x1950a86a20f9469cfc6c: torch files from before torch 1.6
WEB_PAGE = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint where one was looked for."""


def read(
    checkpoint: str | Path,
    allow: Sequence = (),
    sha256: str | None = None,
    allow_pickle: bool = False,
    map_location: Any = "cpu",
) -> dict:
    """Read a checkpoint, without running code from it unless asked to.

    Args:
        checkpoint: Path of a torch file, a ``.safetensors`` file, an ``.npz`` archive or a plain pickle of numpy arrays
            (detectron2's ``.pkl``); an address of one of `SCHEMES`; or a name of `vitdense.weights.sources.NAMED`.
            ``hf://owner/repo@revision/file`` takes a branch, tag or commit, ``torchvision://model.weights`` the name of
            certain weights. What is fetched is cached and not asked for again; a digest in its name is checked.
        allow: What may stand beside tensors, numbers and numpy arrays in a torch file, as for
            `torch.serialization.safe_globals`.
        sha256: Digest that the file must have, or its first 8 or more hex digits.
        allow_pickle: Run the code that a pickle asks for. Only for files whose author you trust.
        map_location: Where tensors go, as for `torch.load`; a dict or function works for torch files alone.

    Returns:
        What the file holds; arrays as tensors.

    Raises:
        CheckpointNotFoundError: There is no such file, model or name, or it cannot be reached.
        CheckpointMismatchError: It is not a checkpoint, is damaged, has another digest, or would run code.
        ValueError: `sha256` is no such digest, or `map_location` no device.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", sha256):
        raise ValueError(f"sha256: got {sha256!r}, expected 8 to 64 hex digits, the start of what `sha256sum` prints")
    name = str(checkpoint)
    if name in NAMED and not Path(name).is_file():
        name = NAMED[name]
    if name.startswith("timm://"):
        model = name.removeprefix("timm://")
        state = read_file(find(_timm_address(model), sha256), allow, allow_pickle)
        return _place(_under_timm_names(model, state), map_location, name)
    return read_file(find(name, sha256), allow, allow_pickle, map_location)


def find(checkpoint: str, sha256: str | None = None) -> Path:
    """The file of a path or address, fetched if need be, its digest checked.

    Raises:
        CheckpointNotFoundError: It is not there, or cannot be reached.
        CheckpointMismatchError: It has another digest, or is a web page.
    """
    scheme = checkpoint.partition("://")[0] if "://" in checkpoint else ""
    if scheme == "torchvision":
        return download(_torchvision_address(checkpoint), sha256)
    if scheme in ("http", "https"):
        return download(checkpoint, sha256)
    if scheme == "hf":
        path = _hub_file(checkpoint)
    elif scheme:
        raise CheckpointNotFoundError(f"checkpoint {checkpoint}: got {scheme}://, expected one of {', '.join(SCHEMES)}")
    else:
        path = _local_file(checkpoint)
    if sha256 is not None:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
        _check_digest(digest.hexdigest(), sha256, str(path), "download it again, or correct sha256")
    return path


def download(address: str, sha256: str | None = None) -> Path:
    """Fetch a file into torch's cache of checkpoints, unless it is there, and return where it is.

    Raises:
        CheckpointNotFoundError: The address cannot be reached.
        CheckpointMismatchError: The file has another digest than `sha256` or its own name say, or is a web page.
            Nothing is kept then.
    """
    asked, address = address, _mirrored(address)
    name = Path(unquote(urlsplit(address).path)).name or "checkpoint"
    # By the whole address: model.pth is a name that many files have.
    folder = hashlib.sha256(address.encode()).hexdigest()[:16]
    path = Path(torch.hub.get_dir()) / "checkpoints" / folder / name
    if path.is_file():
        return find(str(path), sha256)
    if address != asked:
        logger.warning("the host of %s is gone: fetching %s instead", asked, address)
    try:
        # Whoever ends first of several processes puts the file there, the others replace it by the same.
        with whole_file(path) as scratch:
            digest = _fetch(address, scratch)
            _check_digest(digest, sha256, address, "correct sha256, or ask who publishes the file")
            mend = "its name says so; fetch it again, or if you trust it as it is, download it and give its path"
            _check_digest(digest, digest_in_name(name), address, mend)
            with scratch.open("rb") as file:
                _refuse_web_page(file.read(512), address)
    except (OSError, http.client.HTTPException) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {address} cannot be fetched to {path} ({type(error).__name__}: {error}); download it where "
            f"there is a network and give its path, or train from scratch with "
            f"--cfg-options model.backbone.init_cfg=None"
        ) from error
    return path


def digest_in_name(name: str) -> str | None:
    """The start of the SHA-256 digest that a file name ends in, as torch hub's and OpenMMLab's do, or None."""
    match = re.search(r"-([0-9a-f]{8,64})\.[^-]+$", name)
    if not match or re.fullmatch(r"20\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", match[1]):  # none, or a date
        return None
    return match[1]


def _check_digest(got: str, expected: str | None, what: str, mend: str) -> None:
    if expected is not None and not got.startswith(expected.lower()):
        raise CheckpointMismatchError(
            f"{what} is not the file it should be: its SHA-256 digest begins with {got[: len(expected)]}, expected "
            f"{expected.lower()}; {mend}"
        )


def _mirrored(address: str) -> str:
    """`address`, at the mirror if its host is gone."""
    parts = urlsplit(address)
    return parts._replace(netloc=MIRRORS[parts.netloc]).geturl() if parts.netloc in MIRRORS else address


def _fetch(address: str, path: Path) -> str:
    """Write what an address serves to `path` and return its SHA-256 digest."""
    from tqdm import tqdm

    digest = hashlib.sha256()
    request = urllib.request.Request(address, headers={"User-Agent": "vitdense"})  # some hosts refuse Python's
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, path.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        # disable=None: a bar on a terminal only
        with tqdm(total=total, unit="B", unit_scale=True, desc=path.name, disable=None) as bar:
            while block := response.read(CHUNK):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if total is not None and file.tell() != total:
            raise ConnectionError(f"the connection ended after {file.tell()} of {total} bytes")
    return digest.hexdigest()


def _local_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        if not os.access(path, os.R_OK):
            raise CheckpointNotFoundError(f"checkpoint {path} may not be read by this user; give it the right to")
        return path
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix in SUFFIXES)
        hint = f"it holds {', '.join(inside[:10])}: give the path of one" if inside else "give the path of a file"
        raise CheckpointNotFoundError(f"checkpoint {path} is a folder, not a file; {hint}")
    near = difflib.get_close_matches(name, NAMED, n=5)
    hint = f"; did you mean the named weights {', '.join(near)}?" if near else ""
    raise CheckpointNotFoundError(
        f"checkpoint {path} is not a file, and no name of vitdense.weights.sources.NAMED{hint or ';'} put it there, "
        f"give another path or an address ({', '.join(SCHEMES)}), or set init_cfg=None"
    )


def _hub_file(address: str) -> Path:
    match = re.fullmatch(r"hf://([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", address)
    if not match:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: expected hf://owner/repo/path/in/repo or hf://owner/repo@revision/path/in/repo"
        )
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, HTTPError

    repo, revision, name = match.groups()
    # HTTPError is the base class of whatever HTTP library the installed version uses.
    try:
        # Without a network, the hub's own look at its cache comes after half a minute of retries.
        cached = try_to_load_from_cache(repo, name, revision=revision)
        return Path(cached if isinstance(cached, str) else hf_hub_download(repo, name, revision=revision))
    except (OSError, HTTPError, EntryNotFoundError, HFValidationError) as error:
        raise CheckpointNotFoundError(
            f"checkpoint {address} cannot be fetched from the Hugging Face hub ({type(error).__name__}: "
            f"{_reason(error.__cause__ or error)}); check the name and the network (and the variables HF_HUB_OFFLINE, "
            f"HF_ENDPOINT, HF_TOKEN), or download the file where there is a network and give its path"
        ) from error


def _timm_address(model: str) -> str:
    """Where timm has the pretrained weights of a model."""
    import timm

    source = timm.get_pretrained_cfg(model) if timm.is_model_pretrained(model) else None
    if source is None or not (source.hf_hub_id or source.url):
        near = difflib.get_close_matches(model, timm.list_models(pretrained=True), n=5, cutoff=0.4)
        raise CheckpointNotFoundError(
            f"checkpoint timm://{model}: timm {timm.__version__} has no pretrained model of this name; did you mean "
            f"{', '.join(near) or 'one of timm.list_models(pretrained=True)'}?"
        )
    if not source.hf_hub_id:
        return source.url
    return f"hf://{source.hf_hub_id}/{source.hf_hub_filename or 'model.safetensors'}"


def _under_timm_names(model: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a model under the names that timm's modules have today; files of older models have older ones."""
    import timm

    try:
        # Only building the model translates. That draws random numbers, and must not change what is drawn after.
        with torch.random.fork_rng(devices=[]):
            overlay = {"state_dict": state}
            return timm.create_model(model, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointMismatchError(
            f"the file of timm://{model} does not fit that model in timm {timm.__version__} "
            f"({type(error).__name__}: {reason}); update timm, or remove the file from the hub's cache"
        ) from error


def _torchvision_address(address: str) -> str:
    from torchvision import models

    name, _, version = address.removeprefix("torchvision://").partition(".")
    if name not in models.list_models():
        near = difflib.get_close_matches(name, models.list_models(), n=5)
        raise CheckpointNotFoundError(
            f"checkpoint {address}: torchvision has no model {name!r}"
            + (f"; did you mean {', '.join(near)}?" if near else "; torchvision.models.list_models() lists them")
        )
    weights = models.get_model_weights(name).__members__  # DEFAULT among them, where there are any
    version = version.upper() or "DEFAULT"
    if version not in weights:
        raise CheckpointNotFoundError(
            f"checkpoint {address}: torchvision's {name} has weights {', '.join(weights) or '(none)'}; got {version}"
        )
    return weights[version].url


def read_file(
    path: Path, allow: Sequence = (), allow_pickle: bool = False, map_location: Any = "cpu"
) -> dict[str, Any]:
    """What a checkpoint file holds. What kind of file it is, its content says, not its name; arguments as for `read`.

    Raises:
        CheckpointMismatchError: It is not a checkpoint, is damaged, or would run code.
    """
    kind = _kind(path)
    try:
        if kind == "torch":
            # Not mapped: a file that is overwritten in place would change or kill a process that has it mapped, and
            # an optimiser keeps the tensors of the checkpoint it resumes from. Costs 0.2 s per 350 MB, no memory.
            with torch.serialization.safe_globals([*NUMPY_GLOBALS, *allow]):
                saved = torch.load(path, map_location=map_location, weights_only=not allow_pickle)
        else:
            readers: dict[str, Callable[[], Any]] = {
                "safetensors": lambda: load_file(path),  # mapped by the library; load_state_dict copies it
                "npz": lambda: _read_npz(path, allow_pickle),
                "pickle": lambda: _read_pickle(path, allow_pickle),
            }
            saved = readers[kind]()
    except (CheckpointMismatchError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the parsers raise whatever they stumble over
        # Torch's unpickler refuses by this error, ours by a subclass of it; Python's uses it for damage too.
        refusal = pickle.UnpicklingError if kind == "torch" else _RefusedError
        if isinstance(error, refusal) and not allow_pickle:
            raise CheckpointMismatchError(
                f"{path} cannot be read without running code from it: {_reason(error)}. If you trust who made it, "
                f"opt in by allow_pickle=True (in a config: init_cfg=dict(type='Pretrained', checkpoint=..., "
                f"allow_pickle=True)), which runs the file's code; or save its tensors alone as a new file"
            ) from error
        raise CheckpointMismatchError(
            f"{path} cannot be read as a {kind} file ({type(error).__name__}: {_reason(error)}): it is truncated or "
            f"damaged, or needs a device or module that is not here; download or copy it again"
        ) from error
    if not isinstance(saved, dict):
        raise CheckpointMismatchError(
            f"{path} holds a {type(saved).__name__}, expected a dict of tensors; save the state_dict() of the model"
        )
    return saved if kind == "torch" else _place(saved, map_location, str(path))


def _reason(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error.__context__, pickle.UnpicklingError):
        error = error.__context__  # torch surrounds it with advice on how to load unsafely
    return re.split(r"\. Please|\n", str(error).strip())[0].rstrip(". ")


def _refuse_web_page(head: bytes, what: str) -> None:
    if head.lstrip(b"\xef\xbb\xbf \r\n\t").lower().startswith(WEB_PAGE):
        raise CheckpointMismatchError(
            f"{what} is a web page, not weights: it begins with {head[:40]!r}; find the address of the file itself, or "
            f"download it in a browser if it needs a login"
        )


def _kind(path: Path) -> str:
    """Kind of a file by its content: ``torch``, ``safetensors``, ``npz`` or ``pickle``.

    Raises:
        CheckpointMismatchError: None of them.
    """
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise CheckpointMismatchError(f"{path} is empty (0 bytes), expected a checkpoint; download or copy it again")
    _refuse_web_page(head, str(path))
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointMismatchError(f"{path} is a pointer of git-lfs, not weights; fetch them with `git lfs pull`")
    if head.startswith(b"PK"):
        return _kind_of_zip(path)
    if TORCH_MAGIC in head[:64]:
        return "torch"
    if path.suffix == ".safetensors" or head[8:9] == b"{":  # after the length of the header
        return "safetensors"
    if head[:1] == b"\x80" or path.suffix == ".pkl":
        return "pickle"
    raise CheckpointMismatchError(
        f"{path} is not a checkpoint: it begins with {head[:16]!r}; expected a torch file, safetensors, an .npz "
        f"archive or a pickle of numpy arrays"
    )


def _kind_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise CheckpointMismatchError(
            f"{path} is truncated or damaged: a zip archive whose table of contents at the end cannot be read "
            f"({error}); download or copy it again"
        ) from error
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    raise CheckpointMismatchError(
        f"{path} is a zip archive that is no checkpoint: it holds {', '.join(names[:10]) or 'nothing'}; expected a "
        f"torch file (with a data.pkl) or numpy arrays"
    )


def _read_npz(path: Path, allow_pickle: bool) -> dict[str, Any]:
    # numpy refuses arrays of objects by a bare ValueError, which damage raises too: look at the types first.
    if not allow_pickle:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                    if version in header and header[version](file)[2].hasobject:
                        raise _RefusedError(f"the array {name.removesuffix('.npy')} is a pickle of objects")
    with np.load(path, allow_pickle=allow_pickle) as arrays:
        return {name: _as_tensors(arrays[name], name) for name in arrays.files}


def _read_pickle(path: Path, allow_pickle: bool) -> Any:
    with path.open("rb") as file:
        # latin1: numpy arrays that Python 2 wrote
        unpickler = (pickle.Unpickler if allow_pickle else _ArrayUnpickler)(file, encoding="latin1")
        return _as_tensors(unpickler.load(), "checkpoint")


def _as_tensors(node: Any, name: str) -> Any:
    """`node` with every numpy array in it as a tensor; arrays of text as lists."""
    if isinstance(node, dict):
        return {key: _as_tensors(value, str(key)) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return (list if isinstance(node, list) else tuple)(_as_tensors(value, name) for value in node)
    if isinstance(node, _Array):
        node = node.finished()
    if not isinstance(node, np.ndarray):
        return node
    if node.dtype.kind in "US":
        return node.tolist()
    if node.dtype.kind not in "biufc":
        raise CheckpointMismatchError(
            f"{name} is an array of type {node.dtype}, expected numbers; save it as float32 (numpy has no bfloat16)"
        )
    # torch takes native byte order and writable memory only
    return torch.from_numpy(node.astype(node.dtype.newbyteorder("="), order="C", copy=not node.flags.writeable))


def _place(saved: Any, map_location: Any, what: str) -> Any:
    """`saved`, whose tensors are on the CPU, with those at its top level on a device."""
    if map_location is None or str(map_location) == "cpu":
        return saved
    if not isinstance(map_location, (str, int, torch.device)):
        raise ValueError(
            f"map_location: got {map_location!r}, expected a device such as 'cpu' or 'cuda:0', because {what} is not a "
            f"torch file"
        )
    return {key: v.to(map_location) if isinstance(v, Tensor) else v for key, v in saved.items()}


class _RefusedError(pickle.UnpicklingError):
    """A pickle asks for more than data."""


class _Dtype:
    """Stands for `numpy.dtype` in a pickle: numbers, truth values and text only."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not re.fullmatch(r"[biufcSU?]\d*", code):
            raise _RefusedError(f"it asks for arrays of type {code!r}, which are not plain numbers")
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.value = self.value.newbyteorder(state[1])  # the rest is of structured types


class _Array:
    """Stands for an unfinished `numpy.ndarray` in a pickle.

    numpy's own `__setstate__` trusts its input down to the memory, so what a stranger wrote does not get there.
    """

    def __init__(self, kind: str, shape: tuple, typecode: bytes) -> None:  # of the empty array that numpy starts from
        self.value = None

    def __setstate__(self, state: tuple) -> None:
        *_, shape, dtype, fortran, raw = state
        self.value = _array(raw, dtype, shape, "F" if fortran else "C")

    def finished(self) -> np.ndarray:
        if self.value is None:
            raise CheckpointMismatchError("an array in the pickle has no content; save it again")
        return self.value


def _array(raw: bytes | str, dtype: _Dtype, shape: tuple, order: str = "C") -> np.ndarray:
    raw = raw.encode("latin1") if isinstance(raw, str) else raw  # of Python 2
    return np.ndarray(shape, dtype.value, raw, order=order)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Bytes, as Python 3 writes them for Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


PICKLE_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # named, never called
    ("numpy", "dtype"): _Dtype,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",
    **{
        (f"numpy.{core}.{module}", name): value
        for core in ("core", "_core")  # numpy 1 and 2
        for module, name, value in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", lambda dtype, raw: _array(raw, dtype, ())[()]),
            ("numeric", "_frombuffer", lambda *args: _array(*args)),  # pickle protocol 5
        )
    },
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows how numpy's arrays and scalars are put together, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLE_GLOBALS:
            raise _RefusedError(f"it asks for {module}.{name}")
        return PICKLE_GLOBALS[module, name]
