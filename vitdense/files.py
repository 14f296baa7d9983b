"""Files that are whole or not there."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; renamed to `path` when the block ends well, else removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the process id: two machines that share the folder may have the same.
    scratch = path.with_name(f".{path.stem}.{uuid.uuid4().hex}{path.suffix}")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
