"""Curves of training runs, from the scalars that mmengine writes."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vitdense.files import atomic_write, read_text
from vitdense.mm.errors import ConfigError

SCALARS = "*/vis_data/scalars.json"  # in a work folder; the first part is the time of the start
LABELS = {"loss": "loss", "base_lr": "learning rate"}
UNITS = {"mAP": "0 to 1", "mIoU": "%"}  # of the metrics that are drawn, by the end of their name


def read_scalars(work_dir: Path) -> list[dict]:
    """The records of training and validation in a work folder.

    A resumed run writes a file of its own. What it repeats is taken from it, and no longer from the run before.

    Returns:
        The records in order, each with the key ``iteration``. mmengine numbers validations by epoch, if
        ``log_metric_by_epoch`` of `LoggerHook` is set: these get the iteration of the last record of training.
    """
    joined: list[dict] = []
    for file in sorted(work_dir.glob(SCALARS)):
        records, last = [], 0
        for line in read_text(file).split("\n")[:-1]:  # a kill leaves the last line incomplete
            record = json.loads(line)
            last = record.get("iter", max(record["step"], last))
            records.append({**record, "iteration": last})
        start = min((record["iter"] for record in records if "iter" in record), default=None)
        if start is not None:
            joined = [record for record in joined if record["iteration"] < start] + records
    return joined


def draw_curves(work_dirs: Sequence[Path], out_file: Path, metrics: Sequence[str] = ()) -> Path:
    """Draw loss, learning rate and validation metrics of runs over iterations.

    Losses are drawn as they were logged: as means over ``log_processor.window_size`` iterations.

    Args:
        work_dirs: Work folders of runs.
        out_file: PNG file, or one of matplotlib's other formats by its suffix.
        metrics: Names of metrics as in the log; by default, all that end with ``mAP`` or ``mIoU``.

    Returns:
        `out_file`.

    Raises:
        ConfigError: A folder has no record of a training, or none of them has the metric.
    """
    runs = {str(folder): read_scalars(Path(folder)) for folder in work_dirs}
    if absent := [name for name, records in runs.items() if not records]:
        raise ConfigError(
            f"no record of a training in {', '.join(absent)}; expected work folders of vitdense train, with {SCALARS} "
            f"and at least default_hooks.logger.interval iterations"
        )
    known = dict.fromkeys(key for records in runs.values() for record in records for key in record)
    if unknown := [name for name in metrics if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]}? Others: " if near else "expected some of "
        raise ConfigError(f"--metrics: got {', '.join(unknown)}; {hint}{', '.join(known)}")
    shown = ["loss", "base_lr", *(metrics or [key for key in known if key.endswith(tuple(UNITS))])]
    figure = Figure(figsize=(8, 1 + 2.4 * len(shown)), dpi=120, layout="constrained")
    axes = figure.subplots(len(shown), sharex=True)
    for ax, key in zip(axes, shown):
        for i, (name, records) in enumerate(runs.items()):
            points = [(record["iteration"], record[key]) for record in records if key in record]
            # Colours of the cycle, and other lines once they repeat. Of few points, every one is marked.
            style = dict(color=f"C{i % 10}", linestyle=("-", "--", ":")[i // 10 % 3], marker="." * (len(points) < 60))
            ax.plot(*zip(*points), **style, label=name if ax is axes[0] else None)
        unit = "".join(f" ({unit})" for end, unit in UNITS.items() if key.endswith(end))
        ax.set_ylabel(LABELS.get(key, key) + unit)
        ax.grid(alpha=0.3)
    axes[-1].set_xlabel("iteration")
    figure.align_ylabels(axes)
    figure.legend(loc="outside upper left", frameon=False)
    with atomic_write(out_file) as scratch:
        figure.savefig(scratch, format=Path(out_file).suffix[1:] or "png")
    return out_file
