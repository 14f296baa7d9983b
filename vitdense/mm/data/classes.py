"""Labels by name: the mapping between the classes of a model and of data sets, metrics and checkpoints."""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vitdense.errors import CONTROL
from vitdense.mm.data.faults import Faults
from vitdense.mm.errors import join_some
from vitdense.results.draw import distinct_colours


def clean(name: Any) -> Any:
    """A name for comparison: in Unicode's form NFC, without white space around it. Other values stay."""
    return unicodedata.normalize("NFC", name).strip() if isinstance(name, str) else name


def names_faults(names: Sequence[str]) -> Faults:
    """Faults of class names: empty, duplicate, or with control characters."""
    faults, counts = Faults(), Counter(names)
    faults.add("classes have no name", *(repr(name) for name in names if not name.strip()))
    faults.add("classes have the same name", *(name for name, count in counts.items() if count > 1))
    faults.add("names have control characters, which steer a terminal", *filter(CONTROL.search, counts))
    return faults


def alike(names: Sequence[str]) -> list[str]:
    """Names that differ only in case, next to each other."""
    counts = Counter(map(str.casefold, names))
    return sorted((name for name in names if counts[name.casefold()] > 1), key=str.casefold)


def category_ids(classes: Sequence[str], categories: Sequence[Mapping]) -> list[int]:
    """The ids of COCO categories in the order of `classes`; a class without a category gets an unused id."""
    ids = {clean(category["name"]): category["id"] for category in categories}
    unused = itertools.count(max(ids.values(), default=0) + 1)
    return [ids[name] if name in ids else next(unused) for name in map(clean, classes)]


def label_map(values: Sequence[str], classes: Sequence[str], ignored: int = 255) -> dict[int, int]:
    """Value of label maps, with names `values` -> label in `classes`; `ignored` for other classes."""
    labels = {name: label for label, name in enumerate(classes)}
    return {value: labels.get(name, ignored) for value, name in enumerate(values)}


def colours(
    classes: Sequence[str], names: Sequence[str] = (), palette: Sequence[Sequence[int]] = ()
) -> list[tuple[int, ...]]:
    """A colour for each class: from the palette by `names` if it has all, else distinct colours."""
    named = dict(zip(names, palette))
    chosen = [named[name] for name in classes] if set(classes) <= named.keys() else distinct_colours(len(classes))
    return [tuple(map(int, colour)) for colour in chosen]  # mmdet takes no lists


def meta_of(checkpoint: Mapping) -> Mapping:
    """mm's `dataset_meta` in a checkpoint, ``classes`` and ``palette``; empty without one."""
    meta = checkpoint.get("meta") or {}
    if "CLASSES" in meta:  # before mmdet 3 and mmseg 1
        return {"classes": meta["CLASSES"], "palette": meta.get("PALETTE")}
    return meta.get("dataset_meta") or {}


def classes_of(checkpoint: Mapping) -> tuple[str, ...] | None:
    """The class names in a checkpoint, in the order of its outputs; None without them."""
    found = meta_of(checkpoint).get("classes")
    return None if not found else tuple(map(clean, (found,) if isinstance(found, str) else found))


def difference(checkpoint: Sequence[str], data: Sequence[str]) -> str | None:
    """How the classes of a checkpoint and of the data differ, as text; None if they do not."""
    checkpoint, data = [*map(clean, checkpoint)], [*map(clean, data)]
    if checkpoint == data:
        return None
    pairs = [f"{a} for {b}" for a, b in itertools.zip_longest(checkpoint, data, fillvalue="none") if a != b]
    return (
        f"outputs would be taken for other classes: {join_some(pairs)}. Give classes the same names in the data, or, "
        f"to train other classes from its weights, name the parameters of the heads in --fresh"
    )
