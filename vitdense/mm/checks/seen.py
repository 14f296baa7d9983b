"""What was found in files, remembered until they change: to read thousands takes minutes."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from vitdense.files import atomic_write
from vitdense.mm.data.images import ImageFile, read_image_file

VERSION = 2  # of what is remembered


class Notes:
    """A file in torch's cache.

    Args:
        kind: Of what was found.
        *key: What it depends on.
    """

    def __init__(self, kind: str, *key: object) -> None:
        digest = sha256(os.fsencode("\0".join(map(str, key)))).hexdigest()
        self.file = Path(torch.hub.get_dir(), "vitdense", f"{kind}-{VERSION}-{digest}.json")

    def read(self) -> Any:
        """What was written; None: nothing, or it is damaged."""
        with suppress(OSError, ValueError):
            return json.loads(self.file.read_bytes())

    def write(self, content: Any) -> None:
        """Keep it for the next time."""
        with suppress(OSError), atomic_write(self.file) as scratch:  # else the next look reads the files again
            scratch.write_text(json.dumps(content, default=str), encoding="utf-8")


def mark(path: str | Path) -> list[int]:
    """What changes with a file: its size and its time."""
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


class SeenImages:
    """`read_image_file`, which reads no file twice.

    Args:
        paths: Of a data set.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.notes = Notes("images", *map(os.path.abspath, paths))
        self.found = self.notes.read() or {}

    def __call__(self, path: str) -> ImageFile:
        now = mark(path)
        if path not in self.found or self.found[path][0] != now:
            self.found[path] = now, read_image_file(path)[1:]
        mode, stored, loaded, error = self.found[path][1]
        return ImageFile(path, mode, tuple(stored), tuple(loaded), error)

    def save(self) -> None:
        """Keep what was found for the next time."""
        self.notes.write(self.found)
