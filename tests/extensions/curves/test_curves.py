"""What `vitdense plot` and the end of a training draw."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from matplotlib import figure
from mmengine.config import Config
from mmengine.registry import HOOKS

from vitdense.__main__ import main
from vitdense.extensions.curves import curves
from vitdense.extensions.curves.curves import draw_curves, read_scalars
from vitdense.extensions.curves.options import change
from vitdense.mm.errors import ConfigError


def train(iteration, loss, **more):
    return {"base_lr": 0.1, "lr": 0.01, "loss": loss, "iter": iteration, "step": iteration, **more}


def write(folder, time, *records, end="\n"):
    path = folder / time / "vis_data/scalars.json"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, records)) + end)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    first = train(10, 5.0), train(20, 4.0), {"mIoU": 30.0, "step": 20}, train(30, 9.0), train(40, 9.0)
    write(folder, "20260101_100000", *first, end='\n{"base_lr": 0.1, "lo')
    write(folder, "20260101_090000", {"mIoU": 12.0, "step": 0})  # a validation alone
    write(folder, "20260102_080000", train(30, 3.0), train(40, 2.0), {"mIoU": 40.0, "step": 40})
    return folder


def values(records, key):
    return [(record["iteration"], record[key]) for record in records if key in record]


def test_resumed_run_is_joined_and_a_new_one_replaces_the_old_one(run):
    records = read_scalars(run)
    assert values(records, "loss") == [(10, 5.0), (20, 4.0), (30, 3.0), (40, 2.0)]
    assert values(records, "mIoU") == [(20, 30.0), (40, 40.0)]
    write(run, "20260103_080000", train(10, 1.0))
    assert values(read_scalars(run), "loss") == [(10, 1.0)]
    assert values(read_scalars(run), "mIoU") == []


def test_validations_numbered_by_epoch_are_at_the_last_iteration_before(tmp_path):
    epochs = train(10, 5.0, epoch=1), {"mAP": 0.1, "step": 1}, train(22, 4.0, epoch=2), {"mAP": 0.2, "step": 2}
    write(tmp_path, "1", *epochs)
    assert values(read_scalars(tmp_path), "mAP") == [(10, 0.1), (22, 0.2)]


def lines(ax):
    return {line.get_color(): list(zip(*(data.tolist() for data in line.get_data()))) for line in ax.lines}


def test_runs_are_compared_in_one_picture(run, tmp_path, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(curves, "Figure", lambda **options: drawn.append(figure.Figure(**options)) or drawn[-1])
    other, out = tmp_path / "other", tmp_path / "new/curves.png"
    metrics = {"coco/bbox_mAP": 0.25, "coco/bbox_mAP_50": 0.5, "step": 15}
    write(other, "1", train(5, 7.0), train(15, 6.0), metrics)
    assert draw_curves([run, other], out).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]
    loss, rate, iou, box = drawn[0].axes
    assert lines(loss) == {"C0": values(read_scalars(run), "loss"), "C1": [(5, 7.0), (15, 6.0)]}
    assert lines(rate)["C1"] == [(5, 0.1), (15, 0.1)]  # of the base, not of the first group of parameters
    assert lines(iou) == {"C0": [(20, 30.0), (40, 40.0)]}
    assert lines(box) == {"C1": [(15, 0.25)]}
    assert [ax.get_ylabel() for ax in drawn[0].axes] == ["loss", "base_lr", "mIoU", "coco/bbox_mAP"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [str(run), str(other)]
    assert main(["plot", str(run), "--out", f"{tmp_path}/plot.pdf", "--metrics", "lr"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/plot.pdf\n"
    assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")
    assert lines(drawn[1].axes[2]) == {"C0": [(n, 0.01) for n in (10, 20, 30, 40)]}


def test_folders_and_metrics_that_are_not_there_are_named(run, tmp_path):
    with pytest.raises(ConfigError, match=r"--metrics: got mIou; did you mean mIoU"):
        draw_curves([run], tmp_path / "curves.png", ["lr", "mIou"])
    with pytest.raises(ConfigError, match="nothing"):
        draw_curves([run, tmp_path / "nothing"], tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_a_training_ends_with_its_curves_unless_they_are_switched_off(run):
    for given, hooks in (({}, ["curves"]), ({"default_hooks.curves": None}, [])):
        cfg = Config({"default_hooks": {}})
        cfg.given = given
        change(cfg, SimpleNamespace())
        assert list(cfg.default_hooks) == hooks
    hook = HOOKS.build({"type": "vitdense.CurvesHook"})
    for folder in (run, run / "shorter than the interval of the log"):
        hook.after_train(MagicMock(work_dir=str(folder)))
        assert (folder / "curves.png").exists() == (folder == run)
