"""A cache on disk for tensors made from files: atomic, for one version of the package, of bounded size."""

import json
import os
import time
import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import vitdense
from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError

ROOM = 4 * 2**30  # most bytes of all files of a kind in torch's cache
STALE = 600  # seconds without a change, after which the write of a scratch file was killed
SCRATCH = "." + "[0-9a-f]" * 32 + "*"  # see `atomic_write`


def cache_file(kind: str, *key: object) -> Path:
    """A safetensors file in torch's cache for `key` and this version of the package."""
    digest = sha256(os.fsencode("\0".join(map(str, (vitdense.__version__, *key))))).hexdigest()
    return Path(torch.hub.get_dir(), "vitdense", f"{kind}-{digest}.safetensors")


def evict(folder: Path, kind: str) -> None:
    """Remove the least recently used files of a kind until the others are within `ROOM`."""
    sweep(folder)
    files = sorted(folder.glob(f"{kind}-*"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    size = 0
    for i, file in enumerate(files):
        size += file.stat().st_size
        if i and size > ROOM:
            file.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove scratch files of killed writes from a folder and its sub-folders."""
    for file in folder.glob(f"**/{SCRATCH}"):
        if time.time() - file.stat().st_mtime > STALE:
            file.unlink(missing_ok=True)


def write_tensors(path: Path, of: str, tensors: Sequence[Tensor], **about: str) -> None:
    """Write CPU tensors as safetensors, with metadata: a description `of` them, and more `about` them."""
    about = {"of": of, **about}
    content = save({str(i): x for i, x in enumerate(tensors)}, {**about, "crc32": _checksum(tensors, about)})
    with atomic_write(path) as scratch:
        scratch.write_bytes(content)


def read_tensors(path: Path, of: str) -> tuple[list[Tensor], dict[str, str]] | None:
    """Memory-mapped tensors of `write_tensors` and their metadata; None if there is no file.

    A file that is truncated, damaged, or has another description than `of` is a ConfigError.
    """
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = [file.get_tensor(str(i)) for i in range(len(file.keys()))]
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
    if about.get("of") != of:
        raise ConfigError(f"{path} is a file of {about.get('of', 'another program')}, not of {of}")
    if about.pop("crc32", None) != _checksum(tensors, about):
        raise ConfigError(f"{path} is damaged: its checksum is wrong")
    return tensors, about


def _checksum(tensors: Sequence[Tensor], about: dict[str, str]) -> str:
    value = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    for x in tensors:
        value = zlib.crc32(f"{x.dtype} {tuple(x.shape)}".encode(), value)
        value = zlib.crc32(x.contiguous().view(-1).view(torch.uint8).numpy(), value)
    return str(value)
