"""Checkpoint files of every kind, read without running code from them."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError

_multiarray = np.core.multiarray if np.lib.NumpyVersion(np.__version__) < "2.0.0" else np._core.multiarray
# Numpy arrays and scalars in torch files: data, not code.
NUMPY_GLOBALS = (
    *(
        (getattr(_multiarray, name), f"numpy.{core}.multiarray.{name}")  # files written with numpy 1 and 2
        for name in ("_reconstruct", "scalar")
        for core in ("core", "_core")
    ),
    bytes,  # in an empty array
    np.ndarray,
    np.dtype,
    *{type(np.dtype(t)) for t in ("float64", "float32", "int64", "int32", "uint32", "uint8", "bool")},
)

TORCH_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"  # 0x1950a86a20f9469cfc6c: torch files from before torch 1.6


def read_file(
    path: Path, allow: Sequence = (), allow_pickle: bool = False, map_location: Any = "cpu"
) -> dict[str, Any]:
    """Content of a checkpoint file. The content decides the kind of file, not its name. Arguments as for `read`.

    Raises:
        CheckpointMismatchError: It is not a checkpoint, is damaged, or would run code.
    """
    kind = _kind(path)
    try:
        if kind == "torch":
            # Not mapped: a process that has a file mapped breaks when the file is overwritten in place.
            with torch.serialization.safe_globals([*NUMPY_GLOBALS, *allow]):
                saved = torch.load(path, map_location=map_location, weights_only=not allow_pickle)
        elif kind == "safetensors":
            saved = load_file(path)
        else:
            saved = _read_pickle(path, allow_pickle)
    except (CheckpointMismatchError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # parsers raise many types on damage
        # Torch's unpickler refuses code by this error, ours by a subclass; Python's uses it for damage too.
        refusal = pickle.UnpicklingError if kind == "torch" else _RefusedError
        if isinstance(error, refusal) and not allow_pickle:
            raise CheckpointMismatchError(
                f"{path} cannot be read without running code from it: {one_line(error)}. If you trust its author, set "
                f"allow_pickle=True (in a config: init_cfg=dict(type='Pretrained', checkpoint=..., "
                f"allow_pickle=True)), which runs the code; or save the tensors alone to a new file"
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
    """The message of an error in one line."""
    if isinstance(error.__context__, pickle.UnpicklingError):
        error = error.__context__  # torch adds advice on unsafe loading around it
    return re.split(r"\. Please|\n", str(error).strip())[0].rstrip(". ")


def place(saved: dict, map_location: Any, what: str) -> dict:
    """`saved`, with the tensors of its top level on a device."""
    if map_location is None or str(map_location) == "cpu":
        return saved
    if not isinstance(map_location, (str, int, torch.device)):
        raise ValueError(
            f"map_location: got {map_location!r}, expected a device such as 'cpu' or 'cuda:0', because {what} is not a "
            f"torch file"
        )
    return {key: v.to(map_location) if isinstance(v, Tensor) else v for key, v in saved.items()}


def _kind(path: Path) -> str:
    """Kind of a file by its content: ``torch``, ``safetensors`` or ``pickle``.

    Raises:
        CheckpointMismatchError: None of them.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"PK") or TORCH_MAGIC in head:
        return "torch"
    if path.suffix == ".safetensors" or head[8:9] == b"{":  # after the length of the header
        return "safetensors"
    if head[:1] == b"\x80" or path.suffix == ".pkl":
        return "pickle"
    raise CheckpointMismatchError(
        f"{path} ({path.stat().st_size} bytes) is not a checkpoint: it begins with {head[:32]!r}; expected a torch "
        f"file, safetensors, or a pickle of numpy arrays; a web page or a git-lfs pointer only leads to the file"
    )


def _read_pickle(path: Path, allow_pickle: bool) -> Any:
    with path.open("rb") as file:
        # latin1: numpy arrays written by Python 2
        unpickler = (pickle.Unpickler if allow_pickle else _ArrayUnpickler)(file, encoding="latin1")
        return _as_tensors(unpickler.load(), "checkpoint")


def _as_tensors(node: Any, name: str) -> Any:
    """`node` with every numpy array in it as a tensor; arrays of text as lists."""
    if isinstance(node, dict):
        return {key: _as_tensors(value, str(key)) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return (list if isinstance(node, list) else tuple)(_as_tensors(value, name) for value in node)
    if isinstance(node, _Array):
        if node.value is None:
            raise CheckpointMismatchError(f"{name} holds an array without content; save it again")
        node = node.value
    if not isinstance(node, np.ndarray):
        return node
    if node.dtype.kind in "US":
        return node.tolist()
    if node.dtype.kind not in "biufc":
        raise CheckpointMismatchError(
            f"{name} is an array of type {node.dtype}, expected numbers; save it as float32 (numpy has no bfloat16)"
        )
    # torch needs native byte order and writable memory
    return torch.from_numpy(node.astype(node.dtype.newbyteorder("="), order="C", copy=not node.flags.writeable))


class _RefusedError(pickle.UnpicklingError):
    """A pickle asks for more than data."""


class _Dtype:
    """Stands in for `numpy.dtype` in a pickle: numbers, truth values and text only."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        if not re.fullmatch(r"[biufcSU?]\d*", code):
            raise _RefusedError(f"it asks for arrays of type {code!r}, which are not plain numbers")
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.value = self.value.newbyteorder(state[1])  # the rest describes structured types


class _Array:
    """Stands in for an unfinished `numpy.ndarray` in a pickle: numpy's own `__setstate__` trusts its input."""

    value: np.ndarray | None = None

    def __init__(self, kind: str, shape: tuple, typecode: bytes) -> None:  # arguments of the empty array at the start
        pass

    def __setstate__(self, state: tuple) -> None:
        *_, shape, dtype, fortran, raw = state
        self.value = _array(raw, dtype, shape, "F" if fortran else "C")


def _array(raw: bytes | str, dtype: _Dtype, shape: tuple, order: str = "C") -> np.ndarray:
    raw = raw.encode("latin1") if isinstance(raw, str) else raw  # from Python 2
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
    """Builds numpy's arrays and scalars, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLE_GLOBALS:
            raise _RefusedError(f"it asks for {module}.{name}")
        return PICKLE_GLOBALS[module, name]
