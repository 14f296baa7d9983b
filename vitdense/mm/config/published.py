"""Detectors and segmentors that others trained and host, by name.

The names are those of model indices in OpenMMLab's format, ``metafile.yml``: those that the installed mmdet and mmseg
carry, and configs/metafile.yml, whose recipes take the files of the models' authors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml

from vitdense.mm.config.load import CONFIGS
from vitdense.mm.config.walk import as_list
from vitdense.mm.errors import ConfigError

LICENCE = "Apache-2.0"  # of mmdet and mmseg


@dataclass(frozen=True)
class Published:
    """One model.

    Attributes:
        name: Its name.
        config: For `load_config`.
        address: Of its file.
        licence: Of the project that publishes it.
        figures: What was published for it, such as ``{"box AP": 46.0}``.
    """

    name: str
    config: str
    address: str
    licence: str
    figures: Mapping[str, float]


def find_published(name: str) -> Published | None:
    """The model of a name, None if there is none.

    Raises:
        ConfigError: Its file is not at an ``https://`` address.
    """
    found = next((row for row in _read(name) if row.name == name), None)
    if found and not found.address.startswith("https://"):
        raise ConfigError(f"{name}: its file is at {found.address}, expected an address https://")
    return found


def list_published() -> list[str]:
    """All names, in the order of the indices."""
    return [row.name for row in _read("Weights")]


def _read(text: str) -> Iterator[Published]:
    """The models of all indices that have this text."""
    for package, files in _indices():
        for file in files:
            content = file.read_text(encoding="utf-8")
            index = yaml.safe_load(content) if text in content else ()
            for model in index["Models"] if isinstance(index, dict) else index:  # some are lists
                if "Weights" in model:
                    own = package == "vitdense"
                    yield Published(
                        name=model["Name"],
                        config=model["Name"] if own else f"{package}::{model['Config'].removeprefix('configs/')}",
                        address=model["Weights"],
                        licence=model["Paper"]["License"] if own else LICENCE,
                        figures={
                            key: value
                            for result in as_list(model.get("Results"))
                            for key, value in (result.get("Metrics") or {}).items()
                        },
                    )


def _indices() -> Iterator[tuple[str, list[Path]]]:
    """The files of every package that is installed."""
    yield "vitdense", [CONFIGS / "metafile.yml"]
    for package in ("mmdet", "mmseg"):
        if spec := find_spec(package):
            yield package, sorted(Path(spec.origin).parent.glob(".mim/configs/*/metafile.y*ml"))
