"""Parts of the page as HTML, and tables and JSON as files."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from vitdense.extensions.page import bar
from vitdense.files import atomic_write

TABLES = (".csv", ".md")  # files of the table alone
MOST_CLASSES = 24  # of a matrix of confusion
TITLES = {  # part of the numbers -> what it says
    "table": "by class",
    "by_score": "by minimum score",
    "costs": "what each kind of error costs in AP at IoU 0.5, by TIDE",
    "confusion": "taken for one another, in shares of the truth",
}


def text_of(value: Any) -> str:
    """A value of a table as text; nothing for -1 and NaN, where there is nothing to find."""
    if isinstance(value, float):
        return "" if value == -1 or math.isnan(value) else f"{value:.3f}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys; shares have bars."""
    body = []
    for row in rows:
        bars = [bar(value, 1) if isinstance(value, float) and value <= 1 else "" for value in row.values()]
        body.append("<tr><td>" + '<td class="v">'.join(escape(text_of(x)) + y for x, y in zip(row.values(), bars)))
    heads = "".join(f"<th>{escape(name)}" for name in rows[0])
    return f'<div class="scroll plain"><table><thead><tr>{heads}</thead>{"".join(body)}</table></div>'


def confusion(classes: Sequence[str], matrix: Any) -> str:
    """A matrix of true rows and found columns, as shares of a row, of the classes that are confused most."""
    counts = np.array(matrix, float)
    wrong = counts - np.diag(np.diag(counts))
    chosen = np.sort(np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[:MOST_CLASSES])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return table([{"truth / found": classes[i], **{classes[j]: float(shares[i, j]) for j in chosen}} for i in chosen])


def numbers(name: str, values: Mapping[str, Any]) -> str:
    """The sections with the numbers of a kind of results."""
    made = {key: (confusion(**of) if key == "confusion" else table(of)) for key, of in values.items() if key in TITLES}
    return "".join(section(f"{name}: {TITLES[key]}", "", html) for key, html in made.items())


def card(title: str, figures: Iterable[str]) -> str:
    """A heading with figures below it; nothing without figures."""
    shown = "".join(figures)
    return f'<div class="card"><h3>{escape(title)}</h3><div class="pictures wide">{shown}</div></div>' if shown else ""


def section(title: str, note: str, *content: str) -> str:
    """A heading, a note, both as text, and HTML below."""
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(note)}</p>{"".join(content)}'


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV with all digits, or as Markdown with three."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if path.suffix == ".md":
        lines = [keys, ["---"] * len(keys), *([text_of(row.get(key, "")) for key in keys] for row in rows)]
        text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    else:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    with atomic_write(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    with atomic_write(path) as scratch:
        scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
