"""Buffers that are computed from the constructor's arguments."""

from collections.abc import Callable

import torch
from torch import nn


class FormulaBuffers(nn.Module):
    """A module whose buffers are computed from its arguments; the constructor calls `make_buffers`.

    They are computed again when a module from the meta device gets memory (`to_empty`), which is not initialised.
    Checkpoints need not have them.
    """

    def make_buffers(self, device: torch.device | None = None) -> None:
        raise NotImplementedError

    def _apply(self, fn: Callable, recurse: bool = True) -> "FormulaBuffers":
        was_meta = any(buffer.is_meta for buffer in self.buffers(recurse=False))
        super()._apply(fn, recurse)
        buffer = next(self.buffers(recurse=False), None)
        if was_meta and not buffer.is_meta:
            self.make_buffers(buffer.device)
        return self
