"""Buffers that are formulas: they follow from the constructor's arguments."""

from collections.abc import Callable

import torch
from torch import nn


class FormulaBuffers(nn.Module):
    """A module whose buffers follow from its constructor's arguments, which calls `make_buffers`.

    They are made again when a module that was built on the meta device gets memory (`to_empty`): no checkpoint need
    hold them, and what memory holds is no number.
    """

    def make_buffers(self, device: torch.device | None = None) -> None:
        """Register the buffers, filled."""
        raise NotImplementedError

    def _apply(self, fn: Callable, recurse: bool = True) -> "FormulaBuffers":
        was_meta = any(buffer.is_meta for buffer in self.buffers(recurse=False))
        super()._apply(fn, recurse)
        buffer = next(self.buffers(recurse=False), None)
        if was_meta and not buffer.is_meta:
            self.make_buffers(buffer.device)
        return self
