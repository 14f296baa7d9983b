"""What was made of files, kept on the disk: complete or not there, and for what it was made of alone."""

import os
import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vitdense.files import atomic_write
from vitdense.mm.errors import ConfigError

VERSION = 2  # of what is kept in torch's cache


def cache_file(kind: str, *key: object, suffix: str) -> Path:
    """A file in torch's cache.

    Args:
        kind: Of what is kept.
        *key: What it depends on.
        suffix: Of its format.
    """
    digest = sha256(os.fsencode("\0".join(map(str, key)))).hexdigest()
    return Path(torch.hub.get_dir(), "vitdense", f"{kind}-{VERSION}-{digest}{suffix}")


def mark(path: str | Path) -> list[int]:
    """What changes with a file: its size and its time."""
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


def write_tensors(path: Path, of: str, tensors: Sequence[Tensor], **about: str) -> None:
    """Keep tensors.

    Args:
        path: A file of safetensors.
        of: What they depend on.
        tensors: On a CPU.
        **about: More to keep.

    Raises:
        OSError: They cannot be written, as on a full disk; it names the file.
    """
    named = {str(i): x for i, x in enumerate(tensors)}
    content = save(named, {"of": of, "crc32": str(_checksum(tensors)), **about})
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
    if about.get("crc32") != str(_checksum(tensors)):
        raise ConfigError(f"{path} is damaged: its checksum is wrong")
    return tensors, about


def _checksum(tensors: Iterable[Tensor]) -> int:
    value = 0
    for x in tensors:
        value = zlib.crc32(x.numpy(), value)
    return value
