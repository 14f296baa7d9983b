"""The rest of an epoch, for a training that resumes within it."""

from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

# Options set here; others are copied. Persistent workers would wait for a second pass, which this loader does not make.
GIVEN = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "persistent_workers")


class ContinuedLoader:
    """A data loader whose first pass skips `seen` batches without loading them."""

    def __init__(self, loader: DataLoader, seen: int) -> None:
        self.loader, self.seen = loader, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if not self.seen:
            return iter(self.loader)
        batches, self.seen = _Rest(self.loader.batch_sampler, self.seen), 0
        options = {name: getattr(self.loader, name) for name in signature(DataLoader).parameters if name not in GIVEN}
        return iter(DataLoader(self.loader.dataset, batch_sampler=batches, **options))


class _Rest:
    def __init__(self, batches: Iterable, seen: int) -> None:
        self.batches, self.seen = batches, seen

    def __len__(self) -> int:
        return len(self.batches) - self.seen

    def __iter__(self) -> Iterator:
        return islice(iter(self.batches), self.seen, None)
