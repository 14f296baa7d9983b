"""Where weights come from: local files, addresses, hubs and short names, read without running code from them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitdense.weights.changes import VIT_SIZES
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
            certain weights. A ViT of ``timm://`` that computes what no parameter shows, such as rotary positions, is
            refused; of its file alone nobody can tell. What is fetched is cached and not asked for again; a digest in
            its name is checked.
        allow: What may stand beside tensors, numbers and numpy arrays in a torch file, as for
            `torch.serialization.safe_globals`.
        sha256: Digest that the file must have, or its first 8 or more hex digits.
        allow_pickle: Run the code that a pickle asks for. Only for files whose author you trust.
        map_location: Where tensors go, as for `torch.load`; a dict or function works for torch files alone.

    Returns:
        What the file holds; arrays as tensors.

    Raises:
        CheckpointNotFoundError: There is no such file, model or name, or it cannot be reached.
        CheckpointMismatchError: It is not a checkpoint, is damaged, has another digest, would run code, or is of a ViT
            of timm that computes something else than ours.
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
            built = timm.create_model(model, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointMismatchError(
            f"the file of timm://{model} does not fit that model in timm {timm.__version__} "
            f"({type(error).__name__}: {reason}); update timm, or remove the file from the hub's cache"
        ) from error
    if hidden := hidden_in_timm(built):
        raise CheckpointMismatchError(
            f"timm://{model} has {hidden}, which no parameter shows: under the names of another ViT it would load and "
            f"compute something else; choose other weights"
        )
    return built.state_dict()


def hidden_in_timm(model: nn.Module) -> str:
    """What a plain ViT of timm computes that ours do not and that no name or shape of its parameters shows."""
    from timm.models.eva import Eva
    from timm.models.vision_transformer import Attention, Block, ParallelThingsBlock, VisionTransformer

    if not isinstance(model, (VisionTransformer, Eva)):
        return ""
    modules = [module for block in model.blocks for module in block.modules()]
    heads = {module.num_heads for module in modules if isinstance(module, Attention)}
    published = VIT_SIZES.get(model.embed_dim, ("", 0, 0))[2]
    has = {
        "rotary positions": getattr(model, "rope", None) is not None,
        "blocks of another kind": any(type(block) not in (Block, ParallelThingsBlock) for block in model.blocks),
        "an activation other than the exact GELU": any(
            type(act) is not nn.GELU or act.approximate != "none"
            for act in (module.act for module in modules if hasattr(module, "fc1"))
        ),
        "norms of another eps than 1e-6": any(m.eps != 1e-6 for m in modules if isinstance(m, nn.LayerNorm)),
        f"other heads than the {published} of its width": published and heads - {published},
    }
    return ", ".join(what for what, is_so in has.items() if is_so)
