"""A row of the table of models, and what the families' tables of sizes share. It imports no torch."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, TypeVar

from vitdense.errors import OptionError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SATELLITE = ((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RELEASES = "https://github.com/SwinTransformer/storage/releases/download"
Arch = TypeVar("Arch")


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        name: ``<model>.<weights>``; the model alone where no weights were published.
        model: The part of the name that says what is built, such as ``swin_tiny``.
        family: Class, such as ``'Swin'``.
        arch: Its `arch`, a row of the family's table of sizes.
        weights: Address of the weights (see `vitdense.checkpoint.read.read`), or None.
        licence: Of the weights.
        image_size: Of pretraining, in pixels, square.
        options: Constructor arguments that the weights need, such as `window_size` in tokens.
        mean: Of RGB images with values in [0, 1].
        std: Likewise.
        sha256: Digest of the file, where it is known. (Names of torchvision's files hold theirs.)
        patch_size: Side of a patch of a plain ViT in pixels, to whose multiples images are padded; None for others.
        gate: Page on which the authors ask for consent to the licence before they give their files; None for none.
    """

    name: str
    model: str
    family: str
    arch: str
    weights: str | None = None
    licence: str | None = None
    image_size: int = 224
    options: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, float, float] = IMAGENET[0]
    std: tuple[float, float, float] = IMAGENET[1]
    sha256: str | None = None
    gate: str | None = None
    patch_size: int | None = None

    def without_weights(self) -> "Model":
        """The same model with no facts of weights: only mean and standard deviation, which it is usually given."""
        return replace(self, name=self.model, weights=None, licence=None, sha256=None, gate=None)


def is_whole(x: object, least: int = 1) -> bool:
    """Whether this is a whole number from `least` on; True and False are none."""
    return isinstance(x, Integral) and not isinstance(x, bool) and x >= least


def is_number(x: object) -> bool:
    """Whether this is a finite real number; True and False are none."""
    return isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x)


def check_positive(arch: object, *names: str) -> None:
    """Raise a ValueError unless these sizes of `arch` are ints above 0."""
    for name in names:
        if not is_whole(value := getattr(arch, name)):
            raise OptionError(f"arch: {name} is {value!r}, expected a number above 0")


def check_sizes(embed_dims: int, depths: tuple[int, ...]) -> None:
    """Raise a ValueError unless the channels of the first stage and the blocks of every stage are numbers above 0."""
    if not is_whole(embed_dims):
        raise OptionError(f"arch: embed_dims is {embed_dims!r}, expected a number of channels")
    if not isinstance(depths, tuple) or not depths or not all(map(is_whole, depths)):
        raise OptionError(
            f"arch: depths is {depths!r}, expected a number of blocks for every stage, such as (2, 2, 6, 2)"
        )


def find_arch(arch: str | Mapping, table: Mapping[str, Arch]) -> Arch:
    """The row of `table` named `arch`, or a new row of the same type from a mapping of sizes.

    Raises:
        ValueError: The name is not in the table, or the mapping does not have exactly the row's fields (those with
            a default may be left out).
    """
    if isinstance(arch, str):
        if arch not in table:
            # timm's names contain ours: swin_tiny_patch4_window7_224.
            contained = sorted((name for name in table if name in arch), key=len)
            near = contained[-1:] or difflib.get_close_matches(arch, table, n=1)
            hint = f"; did you mean arch={near[0]!r}?" if near else ""
            from vitdense.models.table import find_model  # which needs the rows of all families

            if (row := find_model(arch)) and row.arch not in table:
                hint = f"; it is one of vitdense.{row.family}"
            raise OptionError(f"arch: got {arch!r}, expected one of {', '.join(table)} or a dict of sizes{hint}")
        return table[arch]
    row = type(next(iter(table.values())))
    needed = [field.name for field in fields(row) if field.default is MISSING]
    optional = [field.name for field in fields(row) if field.default is not MISSING]
    if not set(needed) <= set(arch) <= {*needed, *optional}:
        either = f" and, if wanted, {', '.join(optional)}" if optional else ""
        raise OptionError(f"arch: got the sizes {sorted(arch)}, expected exactly {', '.join(needed)}{either}")
    return row(**{name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in arch.items()})
