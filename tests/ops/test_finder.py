"""Import of `mmcv._ext`: the compiled extension if it loads, else the stand-in."""

import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from conftest import REPO

from vitdense import seams
from vitdense.ops import BUILD_COMMAND, OpNotAvailableError, ops_in_use
from vitdense.ops.table import OPS


def python(code: str, *paths: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, REPO)))}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def fake_mmcv(tmp_path: Path) -> Path:
    (tmp_path / "mmcv").mkdir()
    (tmp_path / "mmcv" / "__init__.py").touch()
    return tmp_path


def test_import_vitdense_imports_no_framework():
    out = python(
        "import sys, vitdense\n"
        "vitdense.ops.install()\n"
        "print([m for m in ('torch', 'torchvision', 'mmcv', 'mmengine', 'mmdet', 'mmseg') if m in sys.modules])\n"
        "print(sum(type(f).__module__ == 'vitdense.ops.finder' for f in sys.meta_path))"
    )
    assert out.split() == ["[]", "1"]


def test_import_vitdense_without_mmcv():
    out = python(
        "import sys; sys.modules['mmcv'] = None\n"
        "import vitdense\nfrom vitdense.ops import ops_in_use\nprint(ops_in_use().kind)"
    )
    assert out.strip() == "mmcv not installed"


@pytest.mark.long
def test_broken_compiled_extension_is_replaced_with_a_warning(fake_mmcv):
    (fake_mmcv / "mmcv" / f"_ext{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"not a shared library")
    out = python(
        "import vitdense, mmcv._ext as ext\n"
        "from vitdense.ops import ops_in_use\n"
        "print(ops_in_use().kind, hasattr(ext, '__file__'), callable(ext.nms))",
        fake_mmcv,
    )
    assert "stand-in False True" in out
    assert "does not load" in out
    assert "--no-build-isolation" in out


@pytest.mark.long
def test_loadable_compiled_extension_is_used(fake_mmcv):
    (fake_mmcv / "mmcv" / "_ext.py").write_text("nms = 'compiled'")
    out = python(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "import sys, vitdense, mmcv._ext as ext\n"
        "from vitdense.ops import ops_in_use\n"
        "found = 'vitdense.ops.stand_in' in sys.modules\n"
        "print(ext.nms, ops_in_use().kind, ext.__spec__.loader is ext.__loader__, found)",
        fake_mmcv,
    )
    assert "compiled compiled True False" in out
    assert "INFO:vitdense:mmcv ops: compiled, " in out


def test_imported_extension_is_kept(fake_mmcv):
    out = python(
        "import sys, types; sys.modules['mmcv._ext'] = mine = types.ModuleType('mmcv._ext')\n"
        "import vitdense, mmcv._ext\n"
        "print(sys.modules['mmcv._ext'] is mine, vitdense.ops.ops_in_use().kind)",
        fake_mmcv,
    )
    assert out.split() == ["True", "compiled"]


@pytest.fixture
def mm():
    mm = pytest.importorskip("mmcv.ops")
    if ops_in_use().kind != "stand-in":
        pytest.skip("a compiled mmcv is in use")
    return mm


def test_stand_in_is_a_real_module(mm):
    ext = importlib.import_module("mmcv._ext")
    assert importlib.util.find_spec("mmcv._ext") is not None
    assert ext.__name__ == ext.__spec__.name == "mmcv._ext"
    assert sys.modules["mmcv._ext"] is importlib.reload(ext) is ext
    assert callable(ext.nms)
    assert not hasattr(ext, "__path__")
    assert not hasattr(ext, "__file__")
    assert not hasattr(ext, "__nothing__")


BOXES = torch.tensor([[0.0, 0, 4, 4]])
ROIS = torch.tensor([[0.0, 0, 0, 4, 4]])


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("psamask_forward", lambda mm: mm.PSAMask("collect", (3, 3))(torch.rand(1, 9, 3, 3))),
        ("bbox_overlaps", lambda mm: mm.bbox_overlaps(BOXES, BOXES)),
        ("roi_pool_forward", lambda mm: mm.RoIPool(2)(torch.rand(1, 1, 5, 5), ROIS)),
        ("pool_mode='max'", lambda mm: mm.RoIAlign(2, pool_mode="max")(torch.rand(1, 1, 5, 5), ROIS)),
        (
            "softmax_focal_loss_forward",
            lambda mm: mm.softmax_focal_loss(torch.rand(1, 2), torch.tensor([1]), 2.0, 0.25, None, "sum"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_op_without_stand_in_is_named_with_the_build_command(mm, op, call):
    with pytest.raises(OpNotAvailableError) as error:
        call(mm)
    assert op in str(error.value)
    assert BUILD_COMMAND in str(error.value)
    assert isinstance(error.value, NotImplementedError)


def test_every_op_of_the_table_is_there_and_imported_when_it_is_called(mm):
    assert all(callable(getattr(importlib.import_module(module), name)) for name, module in OPS.items())
    out = python("import sys, vitdense, mmcv.ops\nprint('torchvision' in sys.modules)")
    assert out.split()[-1] == "False"


def test_an_extension_answers_for_an_op(mm, monkeypatch):
    monkeypatch.setattr(seams, "extensions", lambda: {"any": seams.Extension(ops={"sqrt": "math"})})
    assert importlib.import_module("mmcv._ext").sqrt(4) == 2


def test_environment_report_and_sync_bn_of_mmengine(mm):
    pytest.importorskip("mmengine")
    from mmengine.model import revert_sync_batchnorm

    assert "stand-in" in mm.get_compiler_version()  # mmcv's collect_env calls these
    assert "stand-in" in mm.get_compiling_cuda_version()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.SyncBatchNorm(4))
    with torch.no_grad():
        net[1].weight.uniform_()
    reverted = revert_sync_batchnorm(net)
    assert not any(isinstance(m, torch.nn.SyncBatchNorm) for m in reverted.modules())
    assert reverted(torch.rand(2, 3, 5, 5)).shape == (2, 4, 5, 5)
    assert torch.equal(reverted[1].weight, net[1].weight)
