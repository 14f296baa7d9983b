"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; renamed to `path` when the block ends well, else removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


class AtomicLocalBackend(LocalBackend):
    """mmengine's local files, but a file appears under its name only when it is complete.

    ``CheckpointHook(backend_args=dict(backend='vitdense.atomic'))`` then survives a kill in the middle of a save.
    """

    def put(self, obj: bytes, filepath: str | Path) -> None:
        with whole_file(filepath) as scratch:
            scratch.write_bytes(obj)


register_backend("vitdense.atomic", AtomicLocalBackend)
