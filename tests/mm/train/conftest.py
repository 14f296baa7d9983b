"""Shared by the tests of a training's pictures."""

import pytest
from matplotlib import figure


@pytest.fixture
def figures(monkeypatch):
    """Figures that are drawn."""
    from vitdense.mm.train import breakdown, curves

    drawn = []

    class Figure(figure.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            drawn.append(self)

    for module in (breakdown, curves):
        monkeypatch.setattr(module, "Figure", Figure)
    return drawn
