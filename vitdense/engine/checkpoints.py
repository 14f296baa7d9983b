"""mmengine's own loading (`load_from`, resume, test) through `vitdense.weights.read`.

mmengine reads a pickle that asks for more than data by running it, with a warning.
"""

from typing import Any

from mmengine.dist import barrier, get_rank
from mmengine.runner.checkpoint import CheckpointLoader, get_torchvision_models

from vitdense.backbones.base import MMENGINE_GLOBALS
from vitdense.weights.read import read
from vitdense.weights.sources import NAMED


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
    shared = "://" in filename or filename in NAMED  # not a look at the disk: it may differ from rank to rank
    if shared and get_rank() > 0:
        barrier()  # the first process fetches, the others find the file in the cache
    try:
        return read(filename, allow=MMENGINE_GLOBALS, map_location=map_location)
    finally:
        if shared and get_rank() == 0:
            barrier()


# "" is mmengine's loader of local paths, and of all that no other prefix claims.
CheckpointLoader.register_scheme(
    ("", "http://", "https://", "timm://", "hf://", "torchvision://"), load_from_vitdense, force=True
)
