"""The part of the extension for `vitdense export`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from vitdense.mm.export.detectors import Finder


def forms() -> "Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]":
    from vitdense.extensions.deformable.programs import FORMS

    return FORMS


def finder(model: "nn.Module") -> "Finder | None":
    """The objects of a DINO that does not pad images; None for other models."""
    from mmdet.models.detectors import DINO

    from vitdense.extensions.deformable.programs import of_dino

    is_dino = type(model) is DINO and model.bbox_head.loss_cls.use_sigmoid
    return of_dino if is_dino and model.data_preprocessor.pad_size_divisor == 1 else None
