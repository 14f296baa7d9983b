"""What was made of files, kept on the disk: complete or not there, of one version of the package, bounded."""

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

ROOM = 4 * 2**30  # bytes of all files of a kind in torch's cache
STALE = 600  # seconds without a change, after which a scratch file is of a write that was killed
SCRATCH = "." + "[0-9a-f]" * 32 + "*"  # see `atomic_write`


def cache_file(kind: str, *key: object) -> Path:
    """A file of safetensors in torch's cache for what depends on `key` and on the version of the package."""
    digest = sha256(os.fsencode("\0".join(map(str, (vitdense.__version__, *key))))).hexdigest()
    return Path(torch.hub.get_dir(), "vitdense", f"{kind}-{digest}.safetensors")


def evict(folder: Path, kind: str) -> None:
    """Remove the files of a kind that were not used for the longest time, until the others are within `ROOM`."""
    sweep(folder)
    files = sorted(folder.glob(f"{kind}-*"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    size = 0
    for i, file in enumerate(files):
        size += file.stat().st_size
        if i and size > ROOM:
            file.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the scratch files of killed writes from a folder and from all folders in it."""
    for file in folder.glob(f"**/{SCRATCH}"):
        if time.time() - file.stat().st_mtime > STALE:
            file.unlink(missing_ok=True)


def write_tensors(path: Path, of: str, tensors: Sequence[Tensor], **about: str) -> None:
    """Keep tensors of a CPU in a file of safetensors, with what they are `of`, and more `about` them.

    Raises:
        OSError: They cannot be written, as on a full disk; it names the file.
    """
    about = {"of": of, **about}
    content = save({str(i): x for i, x in enumerate(tensors)}, {**about, "crc32": _checksum(tensors, about)})
    with atomic_write(path) as scratch:
        scratch.write_bytes(content)


def read_tensors(path: Path, of: str) -> tuple[list[Tensor], dict[str, str]] | None:
    """Tensors that were kept, memory-mapped, and what was kept about them; None, if there is no file.

    Raises:
        ConfigError: The file is cut short, damaged, or of something else than `of`.
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
