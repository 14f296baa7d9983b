"""Maps of a trunk on disk: a file for every input, named by a digest."""

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from mmengine.logging import print_log
from torch import Tensor

from vitdense.mm.data.kept import read_tensors, sweep, write_tensors
from vitdense.mm.errors import ConfigError


class Maps(NamedTuple):
    """The stored maps of one image, and the original data type and memory order of each."""

    tensors: list[Tensor]  # axes in memory order
    layouts: list[list]


class MapStore:
    """A folder of maps. Files appear only when complete, so several processes and trainings can share it without locks.

    Args:
        folder: It need not exist, and may have maps of other trunks.
        trunk: Digest of the trunk.
        dtype: Data type of stored maps: ``float16`` or ``float32``.
    """

    def __init__(self, folder: str | Path, trunk: str, dtype: str) -> None:
        self.folder, self.trunk, self.dtype = Path(folder, f"{trunk[:32]}-{dtype}"), trunk, getattr(torch, dtype)

    def path(self, key: str) -> Path:
        """The file of an input, by its digest."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def pack(self, maps: Iterable[Tensor]) -> Maps:
        """Convert the maps of an image for storage.

        Raises:
            ConfigError: Values are beyond float16.
        """
        maps = list(maps)
        orders = [sorted(range(x.ndim), key=lambda side, x=x: -x.stride(side)) for x in maps]
        tensors = [x.detach().permute(order).to("cpu", self.dtype).contiguous() for x, order in zip(maps, orders)]
        if not all(x.isfinite().all() for x in tensors):
            raise ConfigError(
                "--cache-features: the trunk's maps have values that are not finite in float16; keep them by "
                "--cache-dtype float32"
            )
        return Maps(tensors, [[str(x.dtype).removeprefix("torch."), order] for x, order in zip(maps, orders)])

    def write(self, key: str, maps: Maps) -> None:
        """Store the maps of an input.

        Raises:
            OSError: The file, which it names, cannot be written, as on a full disk.
        """
        write_tensors(self.path(key), f"{self.trunk} {key}", maps.tensors, layouts=json.dumps(maps.layouts))

    def read(self, key: str) -> Maps | None:
        """The maps of an input, memory-mapped; None if there are none, or, with a warning, if the file is damaged."""
        path = self.path(key)
        try:
            found = read_tensors(path, f"{self.trunk} {key}")
            if found and any(x.dtype != self.dtype for x in found[0]):
                raise ConfigError(f"{path} has maps of another data type than {self.dtype}")
        except ConfigError as error:
            print_log(f"--cache-features: {error}; its maps are computed again", "current", logging.WARNING)
            return None
        return found and Maps(found[0], json.loads(found[1]["layouts"]))

    def check_room(self, size: int, options: str) -> tuple[int, int]:
        """Check that `size` bytes, including maps that are stored already, fit on the disk.

        Returns:
            Stored bytes and free bytes.

        Raises:
            ConfigError: The disk is too full. The message names `options` that need less.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        there = sum(path.stat().st_size for path in self.folder.glob("*/[!.]*.safetensors"))
        free = shutil.disk_usage(self.folder).free
        if size - there > free:
            raise ConfigError(
                f"--cache-features {self.folder.parent}: got a disk with {readable(free)} free, expected "
                f"{readable(size - there)} for the maps; name a folder on another disk, or take {options}"
            )
        return there, free


def stacked(images: Sequence[Maps], device: torch.device) -> list[Tensor]:
    """The maps of a batch as the trunk returned them, in the same memory format, and exact if stored in its dtype."""
    batch = []
    for i, (dtype, order) in enumerate(images[0].layouts):
        x = torch.stack([maps.tensors[i].to(device, getattr(torch, dtype)) for maps in images])  # [B, ...]
        batch.append(x.permute(0, *(1 + order.index(side) for side in range(len(order)))))
    return batch


def readable(size: float) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
