"""What was found in image files, remembered until their size or time changes: to decode thousands takes minutes."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch

from vitdense.files import atomic_write
from vitdense.mm.data.images import ImageFile, read_image_file

VERSION = 1  # of what is remembered


class SeenImages:
    """`read_image_file`, which reads no file twice.

    Args:
        paths: Of a data set, whose notes are one file.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        names = "\0".join(map(os.path.abspath, paths))
        digest = sha256(os.fsencode(names)).hexdigest()
        self.file = Path(torch.hub.get_dir(), "vitdense", f"images-{VERSION}-{digest}.json")
        self.notes = {}
        with suppress(OSError, ValueError):  # there are none, or they are damaged
            self.notes = json.loads(self.file.read_bytes())

    def __call__(self, path: str) -> ImageFile:
        stat = os.stat(path)
        mark = [stat.st_size, stat.st_mtime_ns]
        if path not in self.notes or self.notes[path][0] != mark:
            self.notes[path] = mark, read_image_file(path)[1:]
        mode, stored, loaded, error = self.notes[path][1]
        return ImageFile(path, mode, tuple(stored), tuple(loaded), error)

    def save(self) -> None:
        """Keep the notes for the next time."""
        with suppress(OSError), atomic_write(self.file) as scratch:  # else the next look reads the files again
            scratch.write_text(json.dumps(self.notes), encoding="utf-8")
