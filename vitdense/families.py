"""Families of backbones, found by their folders, and the table of models by name. Imports no torch.

A family is a folder of `vitdense.models`, or of `vitdense.research` if that is installed. ``model.py`` has its classes,
``sizes.py`` its sizes and rows of the table of models, ``checkpoint.py`` its naming schemes. A variant of another
family may have ``model.py`` alone. Files are imported on demand: sizes at the first look-up of a name, naming schemes
of one family when its weights are read.

The name of a model is ``<model>`` or ``<model>.<weights>``: ``swin_tiny.ms_in1k``. A model alone means its first row.
"""

import difflib
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from vitdense import seams
from vitdense.errors import OptionError

FLOORS = tuple(floor for floor in ("models", "research") if find_spec(f"vitdense.{floor}"))
# Class of a backbone -> its folder.
FOLDERS: dict[str, str] = {
    name: f"vitdense.{floor}.{folder}"
    for floor in FLOORS
    for name, folder in import_module(f"vitdense.{floor}").FAMILIES.items()
} | {name: folder for name, (folder, _) in seams.backbones().items()}
HEADS: dict[str, str] = import_module(f"vitdense.{FLOORS[0]}").HEADS  # head with naming schemes -> its folder
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SATELLITE = ((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
OPEN_SOURCE = ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "mpl-2.0", "cc0-1.0")  # licences, in small letters
RELEASES = "https://github.com/SwinTransformer/storage/releases/download"
Arch = TypeVar("Arch")
MODELS: "dict[str, Model]"  # made when it is first used, as DEFAULTS and TIMM


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        name: ``<model>.<weights>``; the model alone where no weights were published.
        model: The part of the name that says what is built, such as ``swin_tiny``.
        family: Class, such as ``'Swin'``.
        arch: Its `arch`, a row of the family's table of sizes.
        weights: Address of the weights (see `vitdense.checkpoint.read.read`), or None.
        licence: Licence of the weights.
        image_size: Side of square images in pretraining, in pixels.
        options: Constructor arguments that the weights need, such as `window_size` in tokens.
        mean: Mean of RGB images with values in [0, 1].
        std: Likewise.
        sha256: Digest of the file, where it is known. (torchvision has it in the file name.)
        patch_size: Side of a plain ViT's patches in pixels: images are padded to multiples. None for other families.
        gate: Page on which the authors ask for consent to the licence before a download; None if they do not.
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
        """The row without the facts of its weights; mean and std stay."""
        return replace(self, name=self.model, weights=None, licence=None, sha256=None, gate=None)


def backbone_class(name: str) -> type:
    return getattr(import_module(f"{FOLDERS[name]}.model"), name)


def arguments(kind: type) -> dict[str, Any] | None:
    """Arguments of a constructor and their defaults, including base classes that get its ``**options``.

    None if the constructor takes any name.
    """
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base):
            _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            found = {x.name: x.default for x in parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)} | found
            if all(x.kind is not x.VAR_KEYWORD for x in parameters):
                return found
    return None


def folders_with(part: str) -> dict[str, str]:
    """The folders with a module ``'sizes'`` or ``'checkpoint'``, by the name of the family."""
    folders = dict.fromkeys(FOLDERS.values())
    return {folder.rpartition(".")[2]: folder for folder in folders if find_spec(f"{folder}.{part}")}


@cache
def _tables() -> dict[str, dict[str, Model]]:
    """The rows by name, in three tables.

    `MODELS`: full names. `DEFAULTS`: names without weights, for the first row of each model. `TIMM`: timm's names, with
    and without the part after the dot.
    """
    sizes = [import_module(f"{folder}.sizes") for folder in folders_with("sizes").values()]
    models = {row.name: row for module in sizes for row in module.rows()}
    hosted = {row.weights.removeprefix("timm://"): row for row in models.values() if "timm://" in (row.weights or "")}
    timm = {name.partition(".")[0]: row for name, row in reversed(hosted.items())} | hosted
    defaults = {row.model: row for row in reversed(models.values())}
    return {"MODELS": models, "DEFAULTS": defaults, "TIMM": timm}


def __getattr__(name: str) -> dict[str, Model]:
    if name not in ("MODELS", "DEFAULTS", "TIMM"):
        raise AttributeError(f"module 'vitdense.families' has no attribute {name!r}")
    return _tables()[name]


def find_model(name: str) -> Model | None:
    """The row of a name, or None.

    ``swin_tiny`` means the first row of this model, and timm's ``vit_base_patch16_224.mae`` means ``vit_base.mae``.
    Extensions have further names, such as ``timm://NAME``.
    """
    found = next((table[name] for table in _tables().values() if name in table), None)
    folders = [folder for folder, start in seams.backbones().values() if name.startswith(start)]
    return import_module(f"{folders[0]}.rows").find_row(name) if found is None and folders else found


def row_of(checkpoint: str | Path) -> Model | None:
    """The row of weights by their name or address, also the authors' address of DINOv3; None for other weights.

    A local file has no row, whatever its name.
    """
    address = str(checkpoint)
    if Path(address).expanduser().is_file():
        return None
    address = re.sub(r"^hf://timm/([^/@]+).*", r"timm://\1", address)
    rows = _tables()["MODELS"].values()
    row = next((row for row in rows if row.weights == address), None) or find_model(address)
    found = re.search(r"dinov3[-_](?:convnext[-_](\w+?)|vit(s|b|l|h|7b)16(plus)?)[-_]pretrain[-_](\w+?m)\b", address)
    if row is None and found:
        of_convnext, size, plus, data = found.groups()
        size = {"s": "small", "b": "base", "l": "large", "h": "huge"}.get(size, size)
        size = f"convnext_{of_convnext}" if of_convnext else size + ("_plus" if plus else "")
        row = find_model(f"dinov3_{size}.fb_{data}")
    return row


def ungated_twin(row: Model) -> Model | None:
    """A row of the same arch whose weights need no consent, or None."""
    same = [other for other in _tables()["MODELS"].values() if (other.family, other.arch) == (row.family, row.arch)]
    return next((other for other in same if other.weights and not other.gate), None)


def near_names(name: str) -> list[str]:
    """Names of the table that look like `name`, for error messages."""
    known = {other for table in _tables().values() for other in table}
    if name.startswith("timm://"):
        import timm

        known = {f"timm://{other}" for other in (*timm.list_models(), *timm.list_pretrained())}
    return difflib.get_close_matches(name, known, n=5)


def is_whole(x: Any, least: int = 1) -> bool:
    """Whether this is a whole number of at least `least`, and not a bool."""
    return isinstance(x, Integral) and not isinstance(x, bool) and int(x) >= least


def is_number(x: object) -> bool:
    """Whether this is a finite real number, and not a bool."""
    return isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x)


def check_positive(arch: object, *names: str) -> None:
    """Raise a ValueError unless these sizes of `arch` are ints above 0."""
    for name in names:
        if not is_whole(value := getattr(arch, name)):
            raise OptionError(f"arch: {name} is {value!r}, expected a number above 0")


def check_heads(dim: int, heads: int) -> None:
    """Raise a ValueError unless `heads` is a number above 0 that divides the channels."""
    if not is_whole(heads) or dim % heads:
        raise OptionError(f"arch: num_heads is {heads!r}, expected a number that divides {dim} channels")


def check_sizes(arch: Any) -> None:
    """Raise a ValueError unless the channels of the first stage and the blocks of every stage are numbers above 0."""
    check_positive(arch, "embed_dims")
    if not isinstance(arch.depths, tuple) or not arch.depths or not all(map(is_whole, arch.depths)):
        raise OptionError(
            f"arch: depths is {arch.depths!r}, expected a number of blocks for every stage, such as (2, 2, 6, 2)"
        )


def find_arch(arch: str | Mapping, table: Mapping[str, Arch]) -> Arch:
    """The row of `table` named `arch`, or a new row from a mapping of its fields; those with a default are optional."""
    if isinstance(arch, str):
        if arch not in table:
            # timm's names contain ours: swin_tiny_patch4_window7_224.
            contained = sorted((name for name in table if name in arch), key=len)
            near = contained[-1:] or difflib.get_close_matches(arch, table, n=1)
            hint = f"; did you mean arch={near[0]!r}?" if near else ""
            if (row := find_model(arch)) and row.arch not in table:
                hint = f"; it is one of vitdense.{row.family}"
            raise OptionError(f"arch: got {arch!r}, expected one of {', '.join(table)} or a dict of sizes{hint}")
        return table[arch]
    kind: Any = type(next(iter(table.values())))
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    optional = [field.name for field in fields(kind) if field.default is not MISSING]
    if not set(needed) <= set(arch) <= {*needed, *optional}:
        either = f" and, if wanted, {', '.join(optional)}" if optional else ""
        raise OptionError(f"arch: got the sizes {sorted(arch)}, expected exactly {', '.join(needed)}{either}")
    return kind(**{name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in arch.items()})
