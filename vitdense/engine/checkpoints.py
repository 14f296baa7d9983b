"""mmengine's own loading (`load_from`, resume, test) through `vitdense.weights.read`.

mmengine reads a pickle that asks for more than data by running it, with a warning.
"""

from typing import Any

from mmengine.runner.checkpoint import CheckpointLoader, get_torchvision_models

from vitdense.backbones.base import MMENGINE_GLOBALS, main_process_first
from vitdense.weights.read import read


def load_from_vitdense(filename: str, map_location: Any = None) -> dict:
    """Loader for mmengine's `CheckpointLoader`; its name is part of what mmengine logs.

    Args:
        filename: See `read`. Under ``torchvision://`` mmengine's names keep their meaning, so that configs do not
            change their weights: ``torchvision://resnet50`` is the first version, not torchvision's newest.
        map_location: As for `torch.load`.

    Raises:
        CheckpointNotFoundError: See `read`.
        CheckpointMismatchError: See `read`.
    """
    if filename.startswith("torchvision://"):
        filename = get_torchvision_models().get(filename.removeprefix("torchvision://"), filename)
    with main_process_first(filename):
        return read(filename, allow=MMENGINE_GLOBALS, map_location=map_location)


# "" is mmengine's loader of local paths, and of all that no other prefix claims.
CheckpointLoader.register_scheme(
    ("", "http://", "https://", "timm://", "hf://", "torchvision://"), load_from_vitdense, force=True
)
