"""The table of models: every model by name, where its weights come from, and what they expect of an image.

A name is ``<model>`` or ``<model>.<weights>``: ``swin_tiny.ms_in1k``. A model alone means its first row. The rows are
in ``sizes.py`` of every family.
"""

import difflib
import re
from pathlib import Path

from vitdense.families import modules
from vitdense.models.rows import Model

MODELS: dict[str, Model] = {row.name: row for sizes in modules("sizes").values() for row in sizes.rows()}
# Models without the weights' name: the first row of each.
DEFAULTS: dict[str, Model] = {row.model: row for row in reversed(MODELS.values())}
# Names of version 0.1, sizes by their first letter: swin_t.ms_in1k.
SHORT: dict[str, Model] = {
    short: row
    for name, row in MODELS.items()
    if row.weights and row.family in ("Swin", "SwinV2", "MViT", "ViT")
    if (short := re.sub(r"_(tiny|small|medium|base|large|huge)", lambda size: size[0][:2], name, count=1)) != name
}
# timm's names of the models whose weights it hosts, with and without the part after the dot.
_HOSTED = {row.weights.removeprefix("timm://"): row for row in MODELS.values() if "timm://" in (row.weights or "")}
TIMM: dict[str, Model] = {name.partition(".")[0]: row for name, row in reversed(_HOSTED.items())} | _HOSTED


def find_model(name: str) -> Model | None:
    """The row of a name, or None. ``swin_tiny`` is the first of its rows; ``swin_t.ms_in1k`` is short for
    ``swin_tiny.ms_in1k``; timm's ``vit_base_patch16_224.mae`` is ``vit_base.mae``."""
    return MODELS.get(name) or DEFAULTS.get(name) or SHORT.get(name) or TIMM.get(name)


def row_of(checkpoint: str | Path) -> Model | None:
    """The row of weights, by its name or its address, or by the authors' address of DINOv3; None for other weights.

    A file on this machine has no row, whatever its name.
    """
    address = str(checkpoint)
    if Path(address).expanduser().is_file():
        return None
    address = re.sub(r"^hf://timm/([^/@]+).*", r"timm://\1", address)
    row = find_model(address) or next((row for row in MODELS.values() if row.weights == address), None)
    found = re.search(r"dinov3[-_]vit(s|b|l|h|7b)16(plus)?[-_]pretrain[-_](lvd1689m|sat493m)", address)
    if row is None and found:
        size, plus, data = found.groups()
        size = {"s": "small", "b": "base", "l": "large", "h": "huge"}.get(size, size) + ("_plus" if plus else "")
        row = find_model(f"dinov3_{size}.fb_{data}")
    return row


def gated_row(address: str) -> Model | None:
    """The row of weights behind a gate, see `row_of`, or None."""
    row = row_of(address)
    return row if row and row.gate else None


def ungated_twin(row: Model) -> Model | None:
    """A row of the same arch whose weights need no consent, or None."""
    same = [other for other in MODELS.values() if (other.family, other.arch) == (row.family, row.arch)]
    return next((other for other in same if other.weights and not other.gate), None)


def near_names(name: str) -> list[str]:
    """Names of the table that look like `name`, for error messages."""
    return difflib.get_close_matches(name, dict.fromkeys([*DEFAULTS, *MODELS, *SHORT, *TIMM]), n=5)
