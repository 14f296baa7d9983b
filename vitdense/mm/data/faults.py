"""The results of a reader of a format: samples and faults; and faults of configs."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmengine.logging import print_log

from vitdense.mm.console import USER_ERRORS, explain
from vitdense.mm.errors import ConfigError, join_some

Size = tuple[int, int]  # width and height in pixels


@dataclass(frozen=True)
class Fault:
    """An error or a warning."""

    what: str  # what was found and what is expected; for several items, what they have in common
    where: str = ""  # key of the config, data set or file
    items: tuple = ()  # ids, files or lines with the fault; empty for a single thing
    fix: str = ""  # what to do
    grave: bool = True  # an error, which stops a training; else a warning
    of: str = ""  # list of a COCO file with the ids in `items`: annotations or images
    total: int = 0  # number of things that could have the fault, if known
    of_masks: bool = False  # only a warning if a training does not load masks
    examples: tuple = ()  # files to draw, if there are no items
    pictures: tuple = field(default=(), compare=False, repr=False)  # captions and pixels [H, W, 3] uint8 RGB

    def __str__(self) -> str:
        where, fix = f"{self.where}: " if self.where else "", f"; {self.fix}" if self.fix else ""
        return f"{where}{self.headline}{f' ({self.listed})' if self.items else ''}{fix}"

    @property
    def headline(self) -> str:
        """The fault, and how many items have it."""
        share = f", {100 * len(self.items) / self.total:.3g} % of {self.total}" if self.total else ""
        return f"{self.what}: {len(self.items)}{share}" if self.items else self.what

    @property
    def listed(self) -> str:
        """The first items; empty if there are none."""
        return f"{self.of} {join_some(self.items)}".strip() if self.items else ""

    def within(self, where: str) -> "Fault":
        """The same fault with `where` as the outer place."""
        return replace(self, where=f"{where}: {self.where}" if self.where else where)


@dataclass
class Samples:
    """The content of a data set, from the reader of its format."""

    sizes: dict[str, Size | None]  # annotated sizes of images by name or path; None if the files have none
    counts: Mapping[str, int] = field(default_factory=dict)  # objects by class, things before stuff
    faults: list[Fault] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)  # further facts, a line each
    shares: Mapping[str, float] = field(default_factory=dict)  # share of pixels by class of segments, in per cent
    densest: int = 0  # most objects in an image, without crowds
    without_mask: list[int] = field(default_factory=list)  # ids of annotations


class Faults:
    """Collects items by fault, in the order of the first item of each."""

    def __init__(self) -> None:
        self._items: dict[Fault, list] = {}

    def add(self, what: str, *items: object, **options: Any) -> None:
        """Add items with a fault, with `options` as its other attributes; without items nothing."""
        if items:
            self._items.setdefault(Fault(what, **options), []).extend(items)

    def __iter__(self) -> Iterator[Fault]:
        return (replace(fault, items=tuple(items)) for fault, items in self._items.items())


def caught(function: Callable[..., Iterable[Fault] | None], *args: Any) -> Iterator[Fault]:
    """The faults that a function yields, and an OptionError that it raises as the last fault."""
    try:
        yield from function(*args) or ()
    except USER_ERRORS as error:
        yield Fault(explain(error))


def refuse(faults: Iterable[Fault]) -> None:
    """Raise the first grave fault as a ConfigError, and log the others before it."""
    for fault in faults:
        if fault.grave:
            raise ConfigError(str(fault))
        print_log(str(fault), logger="current", level=logging.WARNING)
