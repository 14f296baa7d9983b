"""Checkpoint files of every kind, read without running code from them."""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError

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
                f"{path} cannot be read without running code from it: {one_line(error)}. If you trust who made it, "
                f"opt in by allow_pickle=True (in a config: init_cfg=dict(type='Pretrained', checkpoint=..., "
                f"allow_pickle=True)), which runs the file's code; or save its tensors alone as a new file"
            ) from error
        raise CheckpointMismatchError(
            f"{path} cannot be read as a {kind} file ({type(error).__name__}: {one_line(error)}): it is truncated or "
            f"damaged, or needs a device or module that is not here; download or copy it again"
        ) from error
    if not isinstance(saved, dict):
        raise CheckpointMismatchError(
            f"{path} holds a {type(saved).__name__}, expected a dict of tensors; save the state_dict() of the model"
        )
    return saved if kind == "torch" else place(saved, map_location, str(path))


def one_line(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error.__context__, pickle.UnpicklingError):
        error = error.__context__  # torch surrounds it with advice on how to load unsafely
    return re.split(r"\. Please|\n", str(error).strip())[0].rstrip(". ")


def refuse_web_page(head: bytes, what: str) -> None:
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
    refuse_web_page(head, str(path))
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


def place(saved: Any, map_location: Any, what: str) -> Any:
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
