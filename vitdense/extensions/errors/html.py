"""Parts of the page as HTML: tables, curves, matrices of confusion."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from vitdense.extensions.page import bar

MOST_CLASSES = 24  # of a matrix that is shown whole
MOST_PAIRS = 30  # of classes that are confused, if it is not


def cell(value: Any) -> str:
    """A value of a table as text; nothing for -1 and NaN, where there is nothing to find."""
    if isinstance(value, float):
        return "" if value == -1 or np.isnan(value) else f"{value:.3f}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]], bars: str = "") -> str:
    """Rows with the same keys; `bars` is the key of a column with bars."""
    heads = "".join(f"<th>{escape(name)}" for name in rows[0])
    most = max((row[bars] for row in rows), default=0) if bars else 0
    body = []
    for row in rows:
        cells = (escape(cell(value)) + (bar(value, most) if key == bars and most else "") for key, value in row.items())
        body.append("<tr><td>" + '<td class="v">'.join(cells))
    return f'<div class="scroll plain"><table><thead><tr>{heads}</thead>{"".join(body)}</table></div>'


def confusion(classes: Sequence[str], matrix: Sequence[Sequence[float]], unit: str) -> str:
    """A matrix of true rows and found columns; of many classes, the pairs that are confused most."""
    counts = np.array(matrix, float)
    if len(classes) <= MOST_CLASSES:
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        body = []
        for name, row, share in zip(classes, counts, shares):
            cells = "".join(
                f'<td class="v" style="background:color-mix(in srgb, var(--bar) {80 * part:.0f}%, transparent)">{n:.0f}'
                for n, part in zip(row, share)
            )
            body.append(f"<tr><td>{escape(name)}{cells}")
        heads = "".join(f"<th>{escape(name)}" for name in classes)
        return f'<div class="scroll plain"><table><thead><tr><th>truth{heads}</thead>{"".join(body)}</table></div>'
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    pairs = [(i, j) for i, j in zip(*np.unravel_index(order, counts.shape)) if counts[i, j]]
    return table(
        [{"truth": classes[i], "found": classes[j], unit: int(counts[i, j])} for i, j in pairs] or [{"none": ""}]
    )


def curve(lines: Mapping[str, Sequence[tuple[float, float]]], across: str, at: float | None = None) -> str:
    """Lines of points (x, y) from 0 to 1, and a vertical mark."""
    drawn, styles = [], ("", "6 4", "2 4")
    for points, dash in zip(lines.values(), styles):
        path = " ".join(f"{40 + 300 * x:.1f},{210 - 200 * y:.1f}" for x, y in points)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="var(--bar)" stroke-width="2.5" stroke-dasharray="{dash}"/>'
        )
    for x in (0, 0.5, 1):
        drawn.append(f'<text x="{40 + 300 * x}" y="226" text-anchor="middle">{x:g}</text>')
        drawn.append(f'<text x="34" y="{214 - 200 * x}" text-anchor="end">{x:g}</text>')
    if at is not None:
        drawn.append(f'<path d="M{40 + 300 * at:.1f} 10V210" stroke="var(--warning)" stroke-width="1.5"/>')
    names = ", ".join(f"{name} {look}" for name, look in zip(lines, ("solid", "dashed", "dotted")))
    frame = '<path d="M40 10V210H340" fill="none" stroke="var(--faint)"/>'
    svg = f'<svg viewBox="0 0 350 232" font-size="12" fill="var(--faint)">{frame}{"".join(drawn)}</svg>'
    return f'<div class="card">{svg}<p class="faint">{escape(names)}, by {escape(across)}</p></div>'


def card(title: str, content: Iterable[str]) -> str:
    """A heading with figures below it; nothing without figures."""
    shown = "".join(content)
    return f'<div class="card"><h3>{escape(title)}</h3><div class="pictures wide">{shown}</div></div>' if shown else ""
