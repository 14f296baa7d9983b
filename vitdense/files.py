"""Files that appear under their name only when they are complete, and their digests."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary file in the folder of `path`, renamed to `path` when the block succeeds, else removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by the process id: machines that share a folder may have the same one. Names may be as long as a disk allows.
    scratch = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def sha256_of(path: str | Path) -> str:
    """The SHA-256 digest of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it has; neither need exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
