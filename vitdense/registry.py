"""Where mmengine looks for the registries of the scope ``vitdense``: they are in `vitdense.mm.registry`."""

from vitdense.mm.registry import *  # noqa: F403
