"""What was found in files, remembered until they change: to read thousands takes minutes."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from vitdense.files import atomic_write
from vitdense.mm.data.images import ImageFile, read_image_file
from vitdense.mm.data.kept import cache_file, mark


class Notes:
    """A file in torch's cache.

    Args:
        kind: Of what was found.
        *key: What it depends on.
    """

    def __init__(self, kind: str, *key: object) -> None:
        self.file = cache_file(kind, *key, suffix=".json")

    def read(self) -> Any:
        """What was written; None: nothing, or it is damaged."""
        with suppress(OSError, ValueError):
            return json.loads(self.file.read_bytes())

    def write(self, content: Any) -> None:
        """Keep it for the next time."""
        with suppress(OSError), atomic_write(self.file) as scratch:  # else the next look reads the files again
            scratch.write_text(json.dumps(content, default=str), encoding="utf-8")


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
