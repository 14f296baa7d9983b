"""Curves of training runs, from the scalars that mmengine writes."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vitdense.files import atomic_write, read_text
from vitdense.mm.errors import ConfigError

SCALARS = "*/vis_data/scalars.json"  # in a work folder; the first part is the time of the start


def read_scalars(work_dir: str | Path) -> list[dict]:
    """The records of training and validation in a work folder, in order, with the key ``iteration``.

    Records of a resumed run replace earlier ones. A validation numbered by epoch gets the iteration before it.
    """
    joined: list[dict] = []
    for file in sorted(Path(work_dir).glob(SCALARS)):
        records, last = [], 0
        for line in read_text(file).split("\n")[:-1]:  # after a kill the last line may be incomplete
            try:
                record = json.loads(line)
                last = int(record.get("iter", max(record["step"], last)))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                raise ConfigError(f"{file}: got the line {line[:60]!r}, expected a record of a training") from error
            records.append({**record, "iteration": last})
        if trained := [record["iteration"] for record in records if "iter" in record]:
            joined = [record for record in joined if record["iteration"] < min(trained)] + records
    return joined


def draw_curves(work_dirs: Sequence[str | Path], out_file: Path, metrics: Sequence[str] = ()) -> Path:
    """Draw loss, learning rate and metrics of runs over iterations, in the format of the suffix; returns `out_file`.

    `metrics` are names in the log, by default all that end with ``mAP`` or ``mIoU``.
    """
    runs = {str(folder): read_scalars(folder) for folder in work_dirs}
    if absent := [name for name, records in runs.items() if not records]:
        raise ConfigError(
            f"no record of a training in {', '.join(absent)}; expected work folders of vitdense train, with {SCALARS} "
            f"and at least default_hooks.logger.interval iterations"
        )
    known = dict.fromkeys(key for records in runs.values() for record in records for key in record)
    if unknown := [name for name in metrics if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(known)}"
        raise ConfigError(f"--metrics: got {', '.join(unknown)}; {hint}")
    shown = ["loss", "base_lr", *(metrics or [key for key in known if key.endswith(("mAP", "mIoU"))])]
    figure = Figure(figsize=(8, 1 + 2.4 * len(shown)), layout="constrained")
    for i, key in enumerate(shown, 1):
        axes = figure.add_subplot(len(shown), 1, i, xlabel="iteration", ylabel=key)
        for color, (name, records) in enumerate(runs.items()):
            points = [(record["iteration"], record[key]) for record in records if key in record]
            if not all(isinstance(y, int | float) for _, y in points):
                raise ConfigError(f"{name}: got a {key} that is no number in {SCALARS}, expected records of a training")
            axes.plot(*zip(*points), color=f"C{color}", marker=".", label=name)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left")
    with atomic_write(out_file) as scratch:
        figure.savefig(scratch, format=Path(out_file).suffix[1:] or "png")
    return out_file
