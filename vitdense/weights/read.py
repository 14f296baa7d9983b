"""Where weights come from: local files, addresses, hubs and short names, read without running code from them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.fetch import find, timm_address
from vitdense.weights.formats import place, read_file
from vitdense.weights.sources import NAMED


def read(
    checkpoint: str | Path,
    allow: Sequence = (),
    sha256: str | None = None,
    allow_pickle: bool = False,
    map_location: Any = "cpu",
) -> dict:
    """Read a checkpoint, without running code from it unless asked to.

    Args:
        checkpoint: Path of a torch file, a ``.safetensors`` file, an ``.npz`` archive or a plain pickle of numpy arrays
            (detectron2's ``.pkl``); an address of one of `SCHEMES`; or a name of `vitdense.weights.sources.NAMED`.
            ``hf://owner/repo@revision/file`` takes a branch, tag or commit, ``torchvision://model.weights`` the name of
            certain weights. What is fetched is cached and not asked for again; a digest in its name is checked.
        allow: What may stand beside tensors, numbers and numpy arrays in a torch file, as for
            `torch.serialization.safe_globals`.
        sha256: Digest that the file must have, or its first 8 or more hex digits.
        allow_pickle: Run the code that a pickle asks for. Only for files whose author you trust.
        map_location: Where tensors go, as for `torch.load`; a dict or function works for torch files alone.

    Returns:
        What the file holds; arrays as tensors.

    Raises:
        CheckpointNotFoundError: There is no such file, model or name, or it cannot be reached.
        CheckpointMismatchError: It is not a checkpoint, is damaged, has another digest, or would run code.
        ValueError: `sha256` is no such digest, or `map_location` no device.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", sha256):
        raise ValueError(f"sha256: got {sha256!r}, expected 8 to 64 hex digits, the start of what `sha256sum` prints")
    name = str(checkpoint)
    if name in NAMED and not Path(name).is_file():
        name = NAMED[name]
    if name.startswith("timm://"):
        model = name.removeprefix("timm://")
        state = read_file(find(timm_address(model), sha256), allow, allow_pickle)
        return place(_under_timm_names(model, state), map_location, name)
    return read_file(find(name, sha256), allow, allow_pickle, map_location)


def _under_timm_names(model: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a model under the names that timm's modules have today; files of older models have older ones."""
    import timm

    try:
        # Only building the model translates. That draws random numbers, and must not change what is drawn after.
        with torch.random.fork_rng(devices=[]):
            overlay = {"state_dict": state}
            return timm.create_model(model, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointMismatchError(
            f"the file of timm://{model} does not fit that model in timm {timm.__version__} "
            f"({type(error).__name__}: {reason}); update timm, or remove the file from the hub's cache"
        ) from error
