"""Files that appear under their name only when they are complete, and their digests."""

import difflib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from vitdense.errors import OptionError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a full disk, which name no file


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary file in the folder of `path`, renamed to `path` when the block succeeds, else removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not the process id: machines that share a folder may use the same one. Not `path.name`: it may have full length.
    scratch = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        yield scratch
        os.replace(scratch, path)
    except OSError as error:
        if error.filename == str(scratch) or error.errno in FULL:
            error.filename = str(path)
        raise
    finally:
        scratch.unlink(missing_ok=True)


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, whatever the locale."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path}: got bytes that are not UTF-8 ({error.object[error.start : error.end]!r} at {error.start}); save "
            f"the file as UTF-8"
        ) from error


def check_writable(path: str | Path, option: str) -> None:
    """Check before long work that its result can be written. The folder need not exist.

    The message names the `option` for another file.
    """
    path = Path(path)
    folder = next(each for each in (path.absolute()).parents if os.path.lexists(each))
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); name another one: {option}") from error


def check_space(folder: Path, size: int) -> None:
    """Raise the error of a full disk if a file of `size` bytes has no room in a folder, which need not exist."""
    folder = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    if size > (free := shutil.disk_usage(folder).free):
        got = f"got {free / 2**20:.0f} MiB free, expected {size / 2**20:.0f} MiB for the file"
        raise OSError(errno.ENOSPC, got, str(folder))


def state_of(path: str | Path) -> tuple[int, ...]:
    """Values that change when a file does, also when another file of the same size and time replaces it."""
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def sha256_of(path: str | Path) -> str:
    """The SHA-256 digest of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def describe_missing(path: str | Path) -> str:
    """Why there is no file at a path, with near names for the first part of the path that does not exist."""
    absent = Path(path)
    if absent.exists():
        return f"{path} is a folder"
    while absent != absent.parent and not absent.parent.exists():
        absent = absent.parent
    beside = [each.name for each in absent.parent.iterdir()] if absent.parent.is_dir() else []
    near = [str(absent.parent / name) for name in difflib.get_close_matches(absent.name, beside)]
    return f"there is no {absent}" + (f"; did you mean {', '.join(near)}?" if near else "")
