"""The dtype that ops compute in."""

import torch
from torch import Tensor


def widen(*tensors: Tensor) -> list[Tensor]:
    """The tensors in float32; float64 is unchanged. Some kernels of torchvision do not accept half types."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]
