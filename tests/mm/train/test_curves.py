import json
import runpy
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from matplotlib import figure
from matplotlib import pyplot as plt

from vitdense.mm.errors import ConfigError
from vitdense.mm.train import curves
from vitdense.mm.train.curves import draw_curves, read_scalars


def train(iteration, loss, **more):
    return {"base_lr": 0.1, "lr": 0.01, "loss": loss, "iter": iteration, "step": iteration, **more}


def write(folder, time, *records, end="\n"):
    """A run's file in a work folder, as mmengine writes it."""
    path = folder / time / "vis_data/scalars.json"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, records)) + end)


@pytest.fixture
def run(tmp_path):
    """A work folder of a run that was killed after iteration 45, and resumed from iteration 20."""
    folder = tmp_path / "run"
    write(
        folder,
        "20260101_100000",
        *(train(10, 5.0), train(20, 4.0), {"mIoU": 30.0, "step": 20}, train(30, 9.0), train(40, 9.0)),
        end='\n{"base_lr": 0.1, "lo',
    )
    write(folder, "20260101_090000", {"mIoU": 12.0, "step": 0})  # a validation alone
    write(folder, "20260102_080000", train(30, 3.0), train(40, 2.0), {"mIoU": 40.0, "step": 40})
    return folder


def values(records, key):
    return [(record["iteration"], record[key]) for record in records if key in record]


def test_resumed_run_is_joined_and_the_later_wins(run):
    records = read_scalars(run)
    assert values(records, "loss") == [(10, 5.0), (20, 4.0), (30, 3.0), (40, 2.0)]
    assert values(records, "mIoU") == [(20, 30.0), (40, 40.0)]


def test_new_run_in_the_same_folder_replaces_the_old_one(run):
    write(run, "20260103_080000", train(10, 1.0))
    assert values(read_scalars(run), "loss") == [(10, 1.0)]
    assert values(read_scalars(run), "mIoU") == []


def test_validations_numbered_by_epoch_are_at_the_last_iteration_before(tmp_path):
    write(
        tmp_path,
        "1",
        train(10, 5.0, epoch=1),
        {"mAP": 0.1, "step": 1},
        train(22, 4.0, epoch=2),
        {"mAP": 0.2, "step": 2},
    )
    assert values(read_scalars(tmp_path), "mAP") == [(10, 0.1), (22, 0.2)]


@pytest.fixture
def figures(monkeypatch):
    """Figures that are drawn."""
    drawn = []

    class Figure(figure.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            drawn.append(self)

    monkeypatch.setattr(curves, "Figure", Figure)
    return drawn


def lines(ax):
    return {line.get_color(): list(zip(*(data.tolist() for data in line.get_data()))) for line in ax.lines}


def test_runs_are_compared_in_one_picture(run, tmp_path, figures):
    other = tmp_path / "other"
    metrics = {"coco/bbox_mAP": 0.25, "coco/bbox_mAP_50": 0.5, "step": 15}
    write(other, "1", train(5, 7.0), train(15, 6.0), metrics)
    backend = matplotlib.get_backend()
    out = draw_curves([run, other], tmp_path / "new/curves.png")
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]
    assert np.asarray(Image.open(out)).std() > 0
    (figure,) = figures
    loss, rate, iou, box = figure.axes
    assert lines(loss) == {"C0": values(read_scalars(run), "loss"), "C1": [(5, 7.0), (15, 6.0)]}
    assert lines(rate)["C1"] == [(5, 0.1), (15, 0.1)]  # of the base, not of the first group of parameters
    assert lines(iou) == {"C0": [(20, 30.0), (40, 40.0)]}
    assert lines(box) == {"C1": [(15, 0.25)]}
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert labels == ["loss", "base_lr", "mIoU", "coco/bbox_mAP"]
    assert box.get_xlabel() == "iteration"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [str(run), str(other)]
    assert (plt.get_fignums(), matplotlib.get_backend()) == ([], backend)


def test_tool(run, tmp_path, monkeypatch, capsys, repo):
    out = tmp_path / "plot.png"
    monkeypatch.setattr(sys, "argv", ["plot.py", str(run), "--out", str(out), "--metrics", "lr"])
    runpy.run_path(repo / "tools/plot.py", run_name="__main__")
    assert capsys.readouterr().out == f"{out}\n"
    assert out.is_file()


def test_metrics_by_name(run, tmp_path, figures):
    draw_curves([run], tmp_path / "curves.png", ["lr"])
    assert lines(figures[0].axes[2]) == {"C0": [(n, 0.01) for n in (10, 20, 30, 40)]}
    with pytest.raises(ConfigError, match=r"--metrics: got mIou; expected some of .*mIoU"):
        draw_curves([run], tmp_path / "curves.png", ["lr", "mIou"])


@pytest.mark.parametrize(("name", "start"), [("curves", b"\x89PNG"), ("curves.pdf", b"%PDF")])
def test_format_is_that_of_the_suffix(run, tmp_path, name, start):
    assert draw_curves([run], tmp_path / name).read_bytes().startswith(start)


def test_folder_without_a_training_is_named(run, tmp_path):
    with pytest.raises(ConfigError, match="nothing"):
        draw_curves([run, tmp_path / "nothing"], tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
