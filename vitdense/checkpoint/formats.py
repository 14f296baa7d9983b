"""Checkpoint files of every kind, read without running code from them."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitdense.checkpoint.errors import CheckpointMismatchError

# Numpy arrays and scalars in torch files are data, not code.
NUMPY_GLOBALS = (
    *(
        (x.__reduce__()[0], f"numpy.{core}.multiarray.{name}")
        for x, name in ((np.zeros(1), "_reconstruct"), (np.float64(0), "scalar"))
        for core in ("core", "_core")  # files written with numpy 1 and 2
    ),
    bytes,  # in an empty array
    np.ndarray,
    np.dtype,
    *{type(np.dtype(t)) for t in ("float64", "float32", "int64", "int32", "uint32", "uint8", "bool")},
)

LONGEST_HEADER = 2**24  # bytes of a safetensors file: some 10^5 tensors
TORCH_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"  # 0x1950a86a20f9469cfc6c: torch files from before torch 1.6


def read_file(
    path: Path, allow: Sequence = (), allow_pickle: bool = False, map_location: Any = "cpu"
) -> dict[str, Any]:
    """Read a checkpoint file. Its kind is detected by content, not by name. For arguments see `read`.

    A `CheckpointMismatchError` if it is not a checkpoint, is damaged, or would run code.
    """
    kind = _kind(path)
    # No memory map: a process would break if the file is overwritten in place.
    try:
        if kind == "torch":
            with torch.serialization.safe_globals([*NUMPY_GLOBALS, *allow]):
                saved = torch.load(path, map_location=map_location, weights_only=not allow_pickle, mmap=False)
        elif kind == "safetensors":
            saved = load_file(path, backend="pread")
        else:
            saved = _read_pickle(path, allow_pickle)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # parsers raise many types on damage, and MemoryError for a length that is wrong
        # Torch's unpickler raises UnpicklingError for code, ours a subclass. Python's raises it for damage too.
        refusal = pickle.UnpicklingError if kind == "torch" else _RefusedError
        if isinstance(error, refusal) and not allow_pickle:
            raise CheckpointMismatchError(
                f"{path} cannot be read without running code from it: {one_line(error)}. If you trust its author, set "
                f"allow_pickle=True, in a config in init_cfg=dict(type='Pretrained', checkpoint=..., "
                f"allow_pickle=True)"
            ) from error
        raise CheckpointMismatchError(
            f"{path} cannot be read as a {kind} file ({type(error).__name__}: {one_line(error)}): it is truncated or "
            f"damaged, or needs a device or module that is not here; download it again"
        ) from error
    if not isinstance(saved, dict):
        raise CheckpointMismatchError(
            f"{path} holds a {type(saved).__name__}, expected a dict of tensors; save the state_dict() of the model"
        )
    return saved if kind == "torch" else place(saved, map_location)


def one_line(error: BaseException) -> str:
    if isinstance(error.__context__, pickle.UnpicklingError):
        error = error.__context__  # torch wraps it in advice on unsafe loading
    return re.split(r"\. Please|\n", str(error).strip())[0].rstrip(". ")


def place(saved: dict, device: Any) -> dict:
    """`saved` with the tensors at its top level on a device."""
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in saved.items()}


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"PK") or TORCH_MAGIC in head:
        return "torch"
    if head[8:9] == b"{":
        if (length := int.from_bytes(head[:8], "little")) > LONGEST_HEADER:
            raise CheckpointMismatchError(
                f"{path} is no checkpoint, or damaged: got a safetensors header of {length} bytes, expected at most "
                f"{LONGEST_HEADER}"
            )
        return "safetensors"
    if head[:1] == b"\x80":
        return "pickle"
    raise CheckpointMismatchError(
        f"{path} ({path.stat().st_size} bytes) is not a checkpoint: it begins with {head[:32]!r}; expected a torch "
        f"file, safetensors, or a pickle of numpy arrays"
    )


def _read_pickle(path: Path, allow_pickle: bool) -> Any:
    with path.open("rb") as file:
        # latin1: numpy arrays written by Python 2
        return _as_tensors((pickle.Unpickler if allow_pickle else _ArrayUnpickler)(file, encoding="latin1").load())


def _as_tensors(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _as_tensors(value) for key, value in node.items()}
    if isinstance(node, _Array):
        node = node.value
    if isinstance(node, np.ndarray):  # torch needs native byte order and writable memory
        return torch.from_numpy(node.astype(node.dtype.newbyteorder("="), order="C"))
    return node


class _RefusedError(pickle.UnpicklingError):
    """A pickle needs code."""


class _Dtype:
    """Replaces `numpy.dtype` in a pickle: numpy's own `__setstate__` trusts its input."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.value = self.value.newbyteorder(state[1])  # the rest describes structured types


class _Array:
    """Replaces `numpy.ndarray` in a pickle, for the same reason."""

    def __init__(self, kind: str, shape: tuple, typecode: bytes) -> None:  # makes an empty array, filled next
        pass

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.value = _from_buffer(raw, dtype, shape, "F" if is_fortran else "C")


def _from_buffer(raw: bytes, dtype: _Dtype, shape: tuple, order: str) -> np.ndarray:
    return np.frombuffer(raw, dtype.value).reshape(shape, order=order)  # refuses arrays of Python objects


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and refuses everything else."""

    GLOBALS: ClassVar = {
        "collections.OrderedDict": OrderedDict,
        "numpy.ndarray": "numpy.ndarray",  # named, never called
        "numpy.dtype": _Dtype,
        "numpy.core.multiarray._reconstruct": _Array,
        "numpy.core.numeric._frombuffer": _from_buffer,  # pickle protocol 5
    }

    def find_class(self, module: str, name: str) -> Any:
        known = self.GLOBALS.get(f"{module}.{name}".replace("numpy._core", "numpy.core"))  # numpy 2 and 1
        if known is None:
            raise _RefusedError(f"it asks for {module}.{name}")
        return known
