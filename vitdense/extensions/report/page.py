"""The page of `vitdense check --report`: faults with pictures, and statistics of data sets, in one HTML file."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain, islice, starmap
from pathlib import Path
from string import Template

from mmengine.config import Config

from vitdense import __version__
from vitdense.extensions.page import bar, figure, write_page
from vitdense.extensions.report.pictures import Picture, Shown
from vitdense.files import read_text
from vitdense.mm.checks.sets import DataSet
from vitdense.mm.config.query import image_size
from vitdense.mm.data.faults import Fault
from vitdense.mm.errors import ConfigError

PICTURES = 4  # per fault
MOST_PICTURES = 120  # per page, about 25 kB each
FIXES = {  # for faults without a fix of their own, by the list in the annotation file
    "annotations": "Correct these annotations, or remove them",
    "images": "Correct these images in the annotation file, or remove them",
    "": "Correct what is listed, or take it out of the data",
}
SIDES = (8, 16, 32, 96)  # pixels, between the kinds of objects


def write_report(folder: Path, cfg: Config, faults: Sequence[Fault], sets: Sequence[DataSet]) -> Path:
    """Write ``report.html``, which needs no other file and no network.

    Args:
        folder: Folder of the page.
        cfg: The config.
        faults: Faults of the config and its data, in the order of the page.
        sets: The data sets without duplicates, after `describe`.

    Returns:
        The path of the page.
    """
    left, cards, shown = MOST_PICTURES, [], [Shown(of) for of in sets]
    for fault in faults:
        of_sets = (one for of in shown for one in of.pictures(fault))
        pictures = list(islice(chain(fault.pictures, of_sets), min(PICTURES, left)))
        left -= len(pictures)
        cards.append(_card(fault, pictures))
    examples = (one for of in shown if of.set.training for one in of.examples(PICTURES))
    size, said = _input(cfg)
    body = Template(read_text(Path(__file__).with_name("page.html"))).substitute(
        findings="\n".join(cards) or "<p>Nothing.</p>",
        splits="\n".join(map(_split, sets)),
        examples="\n".join(starmap(figure, islice(examples, PICTURES))),
        classes="\n".join(_classes([of for of in sets if of.is_described and of.counts])),
        input=escape(said),
        sizes="\n".join(table for of in shown if of.set.is_described and size for table in _sizes(of, size)),
    )
    path, about = folder / "report.html", f"{cfg.filename or ''} {cfg.model.type}, vitdense {__version__}"
    write_page(path, f"Check of {Path(cfg.filename or 'a config').stem}", about, _verdict(faults), body)
    return path


def _input(cfg: Config) -> tuple[int, str]:
    """The size of the model's input in pixels, and where it is from; 0 if no step of the pipelines has it."""
    mode = "crops" if cfg.get("default_scope") == "mmseg" else "a short side"
    try:
        size = min(image_size(cfg))
    except ConfigError as error:
        return 0, str(error)
    return size, f"The recipe's input: {mode} of {size} pixels."


def _verdict(faults: Sequence[Fault]) -> str:
    errors = sum(fault.grave for fault in faults)
    if not faults:
        return '<b class="good">In good order: no error, no warning.</b>'
    stops = "An error stops a training; a warning does not." if errors else "A training can start."
    return f"<b>Errors: {errors}, warnings: {len(faults) - errors}.</b> {stops}"


def _card(fault: Fault, pictures: Iterable[Picture]) -> str:
    kind = "error" if fault.grave else "warning"
    words = fault.fix or (FIXES[fault.of] if fault.items else "")
    fix = f"<p><b>What to do:</b> {escape(words[:1].upper() + words[1:])}.</p>" if words else ""
    shown = "".join(starmap(figure, pictures))
    return (
        f'<div class="card {kind}"><h3><b class="kind">{kind.title()}</b> {escape(fault.headline)}</h3>{fix}'
        f'<p class="faint">{escape(fault.where)} {escape(fault.listed)}</p>'
        + (f'<div class="pictures">{shown}</div>' if shown else "")
        + "</div>"
    )


def _split(of: DataSet) -> str:
    rows = "".join(f"<li>{escape(text)}</li>" for text in of.rows)
    return f'<div class="card"><h3>{escape(of.label)}</h3><ul>{rows}</ul></div>'


def _classes(shown: Sequence[DataSet]) -> Iterator[str]:
    """A table: a row for each class, a column for each data set."""
    columns = [of.counts for of in shown]
    heads = "".join(f"<th>{escape(of.label)}, {escape(of.unit)}" for of in shown)
    yield f'<div class="scroll"><table><thead><tr><th>class{heads}</thead>'
    for name in dict.fromkeys(name for counts in columns for name in counts):
        yield f"<tr><td>{escape(name)}"
        for counts in columns:
            value = counts.get(name, 0)
            number = str(value) if isinstance(value, int) else f"{value:.3g}"
            yield f'<td class="n">{number}{bar(value, max(counts.values()))}' if value else '<td class="n none">none'
    yield "</table></div>"


def _sizes(of: Shown, size: int) -> Iterator[str]:
    """Tables of the sizes of images, and of objects as the model sees them."""
    ratios = [min(image) / size for image in of.image_sizes]
    names = ("under half of the input", "under the input", "up to twice the input", "larger")
    yield from _histogram(f"{of.set.label}: short side of {len(ratios)} images", names, (0.5, 1, 2), ratios)
    sides = [share * size for share in of.object_shares]
    names = tuple(f"{a} to {b} pixels" for a, b in zip((0, *SIDES), SIDES))
    title = f"{of.set.label}: side of {len(sides)} objects in the input"
    yield from _histogram(title, (*names, f"{SIDES[-1]} and more"), SIDES, sides)


def _histogram(title: str, names: Sequence[str], limits: Sequence[float], values: Sequence[float]) -> Iterator[str]:
    """A table of how many values lie between the limits; nothing without values."""
    counts, total = dict.fromkeys(names, 0), len(values)
    for value in values:
        counts[names[sum(value >= limit for limit in limits)]] += 1
    rows = (
        f'{escape(x)}<td class="n">{n} ({100 * n / total:.3g} %){bar(n, total)}' for x, n in counts.items() if total
    )
    if values:
        yield f'<div class="card"><h3>{escape(title)}</h3><table><tr><td>{"<tr><td>".join(rows)}</table></div>'
