"""The rest of an epoch, for a training that resumes within it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader


class Rest:
    """A batch sampler whose first pass leaves out `seen` batches; its length stays the whole one's."""

    def __init__(self, batches: Iterable, seen: int) -> None:
        self.batches, self.seen = batches, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator:  # a generator: torch asks for two, and starts one
        seen, self.seen = self.seen, 0
        yield from islice(self.batches, seen, None)


def skip(loader: DataLoader, seen: int) -> None:
    """Let the first pass of a data loader skip `seen` batches without loading them."""
    vars(loader)["batch_sampler"] = Rest(loader.batch_sampler, seen)  # torch refuses to set it by name
