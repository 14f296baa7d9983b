"""Models by name."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitdense.checkpoint.errors import naming_option
from vitdense.errors import OptionError
from vitdense.families import MODELS, arguments, backbone_class, find_model, near_names

if TYPE_CHECKING:
    from vitdense.models.base import Backbone


# Arguments of timm's `create_model`: those with another name here, and those that have one value for any backbone.
TIMM_NAMES = {"in_chans": "in_channels", "drop_path": "drop_path_rate"}
TIMM_CONSTANTS = {"features_only": True, "num_classes": 0, "global_pool": "", "dynamic_img_size": True}


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Names that match a pattern such as ``'swin*'`` or ``'*.ms_in22k'``, in the order of the table.

    Args:
        pattern: Compared with the whole name, and with its part before the dot.
        pretrained: Only models with published weights.
    """
    found = [row for row in MODELS.values() if row.weights or not pretrained]
    return [row.name for row in found if fnmatchcase(row.name, pattern) or fnmatchcase(row.model, pattern)]


def create(
    name: str,
    pretrained: bool | str | Path = False,
    out_indices: Sequence[int] | None = None,
    **options: Any,
) -> "Backbone":
    """Build a backbone by name: a plain `torch.nn.Module`, in eval mode, its weights loaded.

    It maps images ``[B, 3, H, W]`` of any size, RGB, normalised by ``model.cfg.mean`` and ``model.cfg.std``, to a tuple
    of maps ``[B, C_i, H_i, W_i]``; `out_channels` and `out_strides` tell their channels and strides.

    Args:
        name: A name of `list_models`, or timm's name of one of these models.
        pretrained: True for the weights of the row, False for random ones; or a file, an address or another name, in
            any naming scheme that is known. They load exactly or raise.
        out_indices: Stages (of a ViT: blocks) to return; None for the class's default.
        **options: Other arguments of the class, such as ``drop_path_rate=0.1`` or ``frozen_stages=2``; and, with
            weights, options of `load_pretrained`, such as ``prefix='model.'``. Arguments of timm's `create_model` that
            mean the same, such as ``in_chans`` or ``features_only=True``, are accepted.

    Returns:
        The backbone. Its `cfg` is the `Model` row of the weights. Without weights, or with weights from a file, it is
        the row of `name` without the facts of its weights: `mean` and `std` are then the usual ones of the model.

    Raises:
        ValueError: The name is not in the table, the row has no weights, an option has an unknown value, or two options
            mean the same.
        TypeError: The class has no such option.
        CheckpointNotFoundError: The weights cannot be found or fetched.
        CheckpointMismatchError: They do not fit this model key by key.
    """
    row = find_model(name)
    if row is None:
        near = near_names(name)
        hint = f"did you mean {', '.join(near)}?" if near else "vitdense.list_models() lists them"
        raise OptionError(f"create: got {name!r}, which is no model; {hint}")
    checkpoint = row.weights if pretrained is True else pretrained
    if pretrained is True and checkpoint is None:
        having = [other for other in MODELS.values() if other.family == row.family and other.weights]
        raise OptionError(
            f"create: got pretrained=True, but no weights of {name} were published; give a file, or choose one of "
            f"{', '.join(other.name for other in having)}"
        )
    if out_indices is not None:
        options["out_indices"] = out_indices
    kind: Any = backbone_class(row.family)  # each has its own arguments
    import torch

    from vitdense.models.base import LOADING  # imports torch, too

    loading = {key: options.pop(key) for key in LOADING if key in options}
    if loading and not checkpoint:
        raise OptionError(f"create: got {', '.join(loading)} without weights to load; give pretrained")
    made_of = {**row.options, **_our_names(options, kind)}
    # The meta device draws no values that a file replaces: a ViT-L would take six seconds, and the memory of its file.
    with torch.device("meta") if checkpoint and kind.takes_tensors else nullcontext():
        model = kind(row.arch, **made_of)
    if checkpoint:
        loading = {"sha256": row.sha256 if pretrained is True else None, **loading}
        with naming_option("pretrained=FILE of create, or pretrained=False without weights"):
            model.load_weights(checkpoint, **loading)
    model.cfg = row if pretrained is True else model.cfg or row.without_weights()
    return model.eval()


def _our_names(options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Rename timm's options to the names of the class. Its constructor refuses unknown ones."""
    for theirs, ours in TIMM_NAMES.items():
        if theirs in options and ours in options:
            raise OptionError(f"create: {theirs} and {ours} are the same option; give one of them")
    renamed = {TIMM_NAMES.get(name, name): value for name, value in options.items()}
    found = {name: value for name, value in renamed.items() if TIMM_CONSTANTS.get(name, kind) != value}
    for name in found.keys() & TIMM_CONSTANTS.keys():
        hint = f"a backbone returns maps, and has {name}={TIMM_CONSTANTS[name]!r} alone"
        raise TypeError(f"create: {kind.__name__} has no option {name}; {hint}")
    if "img_size" in found and "img_size" not in (arguments(kind) or ()):
        raise TypeError(f"create: {kind.__name__} has no option img_size; leave it out: images may have any size")
    return found
