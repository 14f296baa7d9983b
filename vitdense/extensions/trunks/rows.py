"""Rows of the table of models for names of other projects: ``timm://NAME`` and ``hf://OWNER/REPO`` or a folder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.checkpoint.formats import one_line
from vitdense.checkpoint.read import hub_file
from vitdense.errors import OptionError
from vitdense.families import UNIT, Model


@cache
def find_row(name: str) -> Model | None:
    """The row of a name, with the statistics and the licence that the project states; None for another name."""
    project, _, arch = name.partition("://")
    if project == "timm":
        return _timm_row(name, arch)
    if project == "hf" and (Path(arch, "config.json").is_file() or arch.count("/") == 1):
        return _transformers_row(name, arch)
    return None


def _timm_row(name: str, arch: str) -> Model | None:
    import timm

    try:
        cfg = timm.get_pretrained_cfg(arch) if timm.is_model(arch) else None
    except RuntimeError:  # there is no such tag
        return None
    if cfg is None:
        return None
    weights = name if cfg.hf_hub_id or cfg.url else None
    facts = {"licence": cfg.license, "mean": cfg.mean, "std": cfg.std, "image_size": cfg.input_size[-1]}
    return Model(name, name, "TimmTrunk", arch, weights, **facts)


def _transformers_row(name: str, arch: str) -> Model:
    from huggingface_hub import metadata_load

    with hub_errors(arch):
        steps, page = (find_file(arch, file) for file in ("preprocessor_config.json", "README.md"))
    steps = json.loads(steps.read_bytes()) if steps else {}
    mean, std = (steps.get(key) for key in ("image_mean", "image_std"))
    if steps.get("do_normalize") is False:
        mean, std = UNIT
    if not (mean and std) or abs(steps.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise OptionError(
            f"{name}: its preprocessor_config.json does not say by what mean and std of [0, 1] to normalise"
        )
    licence = (metadata_load(page) or {}).get("license") if page else None
    licence = ", ".join(licence) if isinstance(licence, list) else licence
    return Model(name, name, "TransformersTrunk", arch, name, licence, mean=tuple(mean), std=tuple(std))


def find_file(arch: str, name: str) -> Path | None:
    """A file in a folder, or in ``owner/repo`` of the hub; None if there is none of this name.

    Raises:
        CheckpointNotFoundError: See `hub_file`.
    """
    from huggingface_hub.errors import EntryNotFoundError

    if Path(arch).is_dir():
        return Path(arch, name) if Path(arch, name).is_file() else None
    try:
        return hub_file(f"hf://{arch}/{name}")
    except CheckpointNotFoundError as error:
        if isinstance(error.__cause__, EntryNotFoundError):
            return None
        raise


@contextmanager
def hub_errors(arch: str) -> Iterator[ModuleType]:
    """transformers; its errors in building a model become an `OptionError`."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{arch} is of transformers, which is not installed: pip install transformers") from error
    try:
        yield transformers
    except CheckpointNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise OptionError(f"{arch} of transformers cannot be had as a backbone: {one_line(error)}") from error
