"""The naming scheme of RF-DETR's head with oriented boxes."""

from dataclasses import replace

from vitdense.checkpoint.rename import Scheme
from vitdense.checkpoint.schemes import same
from vitdense.models.vit.rfdetr import HEAD, OURS

_OURS = same("shape.layers.{i}.*", "first_shapes.{i}.layers.{j}.*")
HEADS = {"rfdetr_oriented": replace(HEAD, schemes=(Scheme("vitdense", (*OURS, *_OURS)), *HEAD.schemes[1:]))}
