"""Maps of a trunk on disk: a file for every input, under the digest of what the maps depend on."""

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
    """The maps of one image as they are kept, and what each was: its data type, its sides in the order of memory."""

    tensors: list[Tensor]  # their sides in that order
    layouts: list[list]


class MapStore:
    """A folder of maps. A file is complete or not there and its name says what is in it, so that processes, and
    trainings one after the other, fill and read one folder without locks.

    Args:
        folder: It need not exist. It may have the maps of other trunks.
        trunk: Digest of the trunk.
        dtype: That maps are kept in: ``float16`` or ``float32``.
    """

    def __init__(self, folder: str | Path, trunk: str, dtype: str) -> None:
        self.folder, self.trunk, self.dtype = Path(folder, f"{trunk[:32]}-{dtype}"), trunk, getattr(torch, dtype)

    def path(self, key: str) -> Path:
        """The file of an input, by its digest."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def pack(self, maps: Iterable[Tensor]) -> Maps:
        """The maps of an image as they are kept.

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
        """Keep the maps of an input.

        Raises:
            OSError: They cannot be written, as on a full disk; it names the file.
        """
        write_tensors(self.path(key), f"{self.trunk} {key}", maps.tensors, layouts=json.dumps(maps.layouts))

    def read(self, key: str) -> Maps | None:
        """The maps of an input, memory-mapped; None, if there are none yet, or with a warning none that are sound."""
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
        """See that a number of bytes finds room, in all, with what is there already.

        Returns:
            Bytes that are there, and bytes that are free.

        Raises:
            ConfigError: The disk is too full; `options` take less.
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
    """The maps of a batch as the trunk gave them, also in memory: bit for bit, if they are kept in its data type."""
    batch = []
    for i, (dtype, order) in enumerate(images[0].layouts):
        x = torch.stack([maps.tensors[i].to(device, getattr(torch, dtype)) for maps in images])  # [B, ...]
        batch.append(x.permute(0, *(1 + order.index(side) for side in range(len(order)))))
    return batch


def readable(size: float) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
