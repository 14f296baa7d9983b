"""The command line: options that contradict each other."""

import runpy
import sys

import pytest

from vitdense.mm.config.arguments import make_parser


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("train x --epochs 2 --iters 3", "--iters"),
        ("train x --resume --fresh a", "--fresh"),
        ("train x --resume --overwrite", "--overwrite"),
        ("train x --resume --cfg-options load_from=a.pth", "load_from"),
        ("train x --iters 3 --cfg-options train_cfg.max_iters=4", "train_cfg.max_iters"),
        ("train x --iters 3 --cfg-options train_cfg=dict(max_iters=4)", "train_cfg.max_iters"),
        ("train x --iters 3 --cfg-options train_cfg=None", "train_cfg"),
        ("train x --batch-size 2 --cfg-options train_dataloader.batch_size=4", "train_dataloader.batch_size"),
        ("train x --iters 0", "'0'"),
        ("train x --iters two", "two"),
        ("train x --lrs 0.1", "--cfg-options sets all else, such as optim_wrapper.optimizer"),
        *((f"train x --lr {text}", f"'{text}'") for text in ("0", "-1", "nan", "inf", "fast")),
        ("train x --lr 1e-4 --cfg-options optim_wrapper.optimizer.lr=1", "optim_wrapper.optimizer.lr"),
        ("train x --cfg-options a=1 a=2", "twice"),
        ("train x --cfg-options a=1 --cfg-options a=2", "twice"),
        ("train x --cfg-options custom_hooks=[dict(type='A',  momentum=1)]", "quote"),
        ("test x y --tta --tiles 64", "--tiles"),
        ("test x y --overlap 0.2", "--tiles"),  # the default
        ("predict x y z --as-dataset a --out-dir b", "--out-dir"),
        ("predict x y z --as-dataset a --indices", "--indices"),
        ("export x y --to onnx --calibrate a", "--int8"),
        ("export x y --to onnx --int8-bound 0.2", "--int8"),
    ],
)
def test_options_of_the_tools_that_contradict_each_other_are_refused(repo, monkeypatch, capsys, command, named):
    tool, *argv = command.split(" ")
    monkeypatch.setattr(sys, "argv", [tool, *filter(None, argv)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(repo / "tools" / f"{tool}.py"))["main"]()
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert named in line


def test_cfg_options_given_twice_add_up():
    args = make_parser("", "vitdense").parse_args(["x", "--cfg-options", "a=1", "--cfg-options", "b=2"])
    assert args.cfg_options == {"a": 1, "b": 2}
    assert make_parser("", "vitdense").parse_args(["x"]).cfg_options == {}
