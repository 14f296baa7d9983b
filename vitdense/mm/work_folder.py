"""The folder of a training. Only this module lists, names and moves its files."""

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from zipfile import is_zipfile

from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from safetensors import SafetensorError, safe_open

from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.errors import OptionError
from vitdense.families import find_model, near_names
from vitdense.files import atomic_write, check_writable, describe_missing, remove
from vitdense.mm.checkpoints import REST, SCRATCH, is_checkpoint, read_checkpoint
from vitdense.mm.errors import ConfigError, join_some

CHECKPOINT = re.compile(r"(iter|epoch)_(\d+)\.pth")  # checkpoints to resume from
WEIGHTS = "weights.pth"  # the weights of a checkpoint in parts, in one file
CURVES = "curves.png"
POINT = "operating_point.json"
LAST = "last_checkpoint"  # mmengine writes a path; only its name is used, as the folder may be a copy
LOCK = ".lock"
ASIDE = "replaced"  # numbered folders of replaced runs
INNER = ("test",)  # work folders inside of it
# Files and log folders that a training and a test write, besides their config.
WRITTEN = re.compile(
    rf"(best_.+_)?(iter|epoch)_(\d+)(-[0-9a-f]{{8}})?\.pth|{re.escape(CURVES)}|{re.escape(POINT)}|{LAST}"
)
LOGS = re.compile(r"\d{8}_\d{6}")  # the time of a start


class WorkFolder:
    """The folder of a training, which may have been copied, moved or renamed; it and its files need not exist."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.weights, self.curves, self.operating_point = (self.path / name for name in (WEIGHTS, CURVES, POINT))

    @property
    def latest(self) -> Path | None:
        """The complete checkpoint to resume from, or None: the last noted one, else the one of most iterations."""
        if (noted := self._noted()) and is_whole(noted):
            return noted
        newest = [path for paths in self._numbered().values() for path in [*filter(is_whole, paths)][-1:]]
        return max(newest, key=_iterations) if len(newest) > 1 else next(iter(newest), None)

    @property
    def cut(self) -> list[Path]:
        """Truncated or absent checkpoints, unless the last noted one is complete."""
        noted = self._noted()
        if noted and is_whole(noted):
            return []
        absent = [noted] if noted and CHECKPOINT.fullmatch(noted.name) and not noted.exists() else []
        return [*absent, *(path for path in self.checkpoints if not is_whole(path))]

    @property
    def checkpoints(self) -> list[Path]:
        """All checkpoints to resume from, complete or not."""
        return [path for paths in self._numbered().values() for path in paths]

    @property
    def config(self) -> Path:
        """The config of the training; a ConfigError if there is none, or several."""
        found = sorted(self.path.glob("*.py"))
        found = found if len(found) < 2 else list(filter(is_saved_config, found))
        if len(found) != 1:
            raise ConfigError(
                f"config {self.path}: got a folder with {len(found)} configs, expected a work folder, with one"
            )
        return found[0]

    @property
    def lack(self) -> str:
        if cut := self.checkpoints:
            return f"the folder has no whole checkpoint: {join_some(path.name for path in cut)} cut short"
        return "the folder has no checkpoint; train one with vitdense train, or name a file or another folder"

    def is_of(self, config: Path) -> bool:
        """Whether a file is the config of the training in this folder."""
        return is_saved_config(config) and (bool(self.checkpoints) or any(map(_is_log, self.path.iterdir())))

    def note(self, name: str) -> None:
        with atomic_write(self.path / LAST) as scratch:
            scratch.write_text(name, encoding="utf-8")

    def write_config(self, cfg: Config, modules: Sequence[Path] = ()) -> None:
        """Write the config of the training, and its `own_modules` beside it."""
        for path in modules:
            if path.parent != self.path.resolve():
                _copy(path, self.path)
        with atomic_write(self.config_of(cfg)) as scratch:
            scratch.write_text(cfg.pretty_text, encoding="utf-8")

    def config_of(self, cfg: Config) -> Path:
        return self.path / Path(cfg.filename or "config.py").name

    def make(self) -> None:
        """Make the folder; an OptionError if it cannot be written, or its path is not UTF-8, which mmengine needs."""
        path = str(self.path.absolute())
        if path != path.encode(errors="replace").decode():
            raise OptionError(f"work folder {path}: got a name whose bytes are not UTF-8; name another one: --work-dir")
        for name in (LAST, WEIGHTS, CURVES):
            check_writable(self.path / name, "--work-dir")
        self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the folder for one training, else a ConfigError, and remove what a killed save has left."""
        with ExitStack() as stack:
            if is_main_process():
                self.make()
                try:
                    stack.enter_context(FileLock(self.path / LOCK, timeout=0))
                except Timeout as error:
                    raise ConfigError(f"{self.path} is in use by another training; name another --work-dir") from error
                for scratch in (*self.path.glob(f".{'[0-9a-f]' * 32}*"), *self.path.glob(f"{SCRATCH}*")):
                    remove(scratch)  # from `atomic_write`
            yield

    def check_config(self, cfg: Config) -> None:
        """Raise a ConfigError if the config of a training would replace a file of the user."""
        if (path := self.config_of(cfg)).exists() and not is_saved_config(path):
            raise ConfigError(
                f"{path} is no config that a training wrote, and this training would replace it by its complete one; "
                f"move it, or name another --work-dir"
            )

    def check_replaceable(self, named: Collection[Path]) -> None:
        """Raise a ConfigError if a training that replaces this one needs a file of it, except configs: they stay."""
        for path in self._written():
            whole = Path(os.path.realpath(path))
            if path.suffix != ".py" and any(file.is_relative_to(whole) for file in named):
                raise ConfigError(
                    f"--overwrite: the config names {path}, which is moved aside with the training; copy it to another "
                    f"folder and name the copy, or name another --work-dir"
                )

    def move_aside(self, named: Collection[Path], current: str | Path, modules: Sequence[Path] = ()) -> Path | None:
        """Move the run in the folder to a work folder inside of it; returns that folder, or None if there is no run.

        Configs among `named_files` of the new training stay, and the run gets copies; its log folder `current` stays.
        """
        kept = {*named, Path(os.path.realpath(current))}
        moved = [path for path in self._written() if Path(os.path.realpath(path)) not in kept]
        if not moved:
            return None
        aside = next(path for i in count(1) if not os.path.lexists(path := self.path / f"{ASIDE}_{i}"))
        aside.mkdir()
        for path in (*filter(is_saved_config, self.path.glob("*.py")), *(self.path / path.name for path in modules)):
            if path.exists():
                _copy(path, aside)
        for path in moved:
            to = aside / path.relative_to(self.path)
            to.parent.mkdir(exist_ok=True)
            path.replace(to)  # may replace the copy of a config
        return aside

    def _noted(self) -> Path | None:
        path = self.path / LAST
        text = path.read_bytes().strip(b"\0\r\n ") if path.is_file() else b""  # may be empty after a kill or a copy
        name = os.fsdecode(re.split(rb"[\\/\0]", text)[-1])
        return self.path / name if name else None

    def _numbered(self) -> dict[str, list[Path]]:
        found: dict[str, list[tuple[int, Path]]] = {}
        for path in self.path.glob("*.pth"):
            if match := CHECKPOINT.fullmatch(path.name):
                found.setdefault(match[1], []).append((int(match[2]), path))
        return {kind: [path for _, path in sorted(paths)] for kind, paths in found.items()}

    def _written(self) -> Iterator[Path]:
        has_parts = any(path.is_dir() for path in self.checkpoints)  # else WEIGHTS is a user's file
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if path.name in INNER and path.is_dir():
                yield from WorkFolder(path)._written()
            elif (
                WRITTEN.fullmatch(path.name)
                or _is_log(path)
                or (path.name == WEIGHTS and has_parts)
                or is_saved_config(path)
            ):
                yield path


def is_saved_config(path: Path) -> bool:
    """Whether a training wrote this config: it has keys that commands set."""
    if path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return all(re.search(rf"^{key} = ", text, re.MULTILINE) for key in ("launcher", "work_dir"))


def _is_log(path: Path) -> bool:
    return bool(LOGS.fullmatch(path.name)) and path.is_dir()


def is_whole(path: Path) -> bool:
    """Whether a checkpoint, a file or a folder of `save_parts`, is not truncated. Digests are compared on reading."""
    if path.is_file():
        return is_zipfile(path)  # needs the directory at its end
    names = read_checkpoint(str(path / REST), "meta")["parts"] if is_zipfile(path / REST) else None
    try:
        for name in names or ():
            with safe_open(path / name, "pt"):  # compares the sizes
                pass
    except (OSError, SafetensorError):
        return False
    return names is not None


def _iterations(path: Path) -> int:
    kind, number = CHECKPOINT.fullmatch(path.name).groups()
    return int(number) if kind == "iter" else read_checkpoint(str(path), "meta")["meta"]["iter"]


def _copy(path: Path, folder: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, folder / path.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(path, folder / path.name)


def find_checkpoint(checkpoint: str | Path, measured: bool = False) -> str:
    """The path of a checkpoint; a CheckpointNotFoundError if there is no such file, or no complete one in the folder.

    Args:
        checkpoint: A file, or a folder of `save_parts`; a work folder, for its latest checkpoint; or a URL or name of
            weights, returned unchanged.
        measured: Refuse a folder whose last checkpoint is truncated. Otherwise the one before is taken, with a warning.
    """
    checkpoint = os.path.expanduser(str(checkpoint))
    path = Path(checkpoint)
    if "://" in checkpoint or (find_model(checkpoint) is not None and not path.exists()) or is_checkpoint(path):
        return checkpoint
    if not path.is_dir():
        models = "".join(f"; or the model {name}" for name in near_names(checkpoint)[:1])
        raise CheckpointNotFoundError(f"checkpoint {checkpoint}: {describe_missing(path)}{models}")
    folder = WorkFolder(path)
    if (latest := folder.latest) is None:
        raise CheckpointNotFoundError(f"checkpoint {checkpoint}: {folder.lack}")
    if cut := folder.cut:
        said = f"checkpoint {checkpoint}: {join_some(path.name for path in cut)} cut short or absent"
        if measured:
            raise CheckpointNotFoundError(f"{said}; name the checkpoint to test, such as {latest}")
        print_log(f"{said}; {latest.name} is taken", "current", logging.WARNING)
    return str(latest)
