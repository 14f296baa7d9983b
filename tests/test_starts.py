"""What a start imports: seconds of CPU that a user waits for."""

import pytest
from conftest import run_python

from vitdense import seams
from vitdense.__main__ import COMMANDS

HEAVY = ("torch", "torchvision", "timm", "mmengine", "mmcv", "mmdet", "mmseg", "cv2", "PIL", "pycocotools")


def test_a_backbone_without_timm_and_the_compiler():
    code = """
import sys, vitdense
vitdense.create("swin_tiny")
print({name for name in ("timm", "torchvision", "torch._dynamo") if name in sys.modules})
"""
    assert run_python(code).stdout == "set()\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("scope", "other", "data"), [("mmdet", "mmseg", "ShapesDataset"), ("mmseg", "mmdet", "ShapesSegDataset")]
)
def test_a_trunk_and_data_of_one_framework_without_the_other_and_timm(scope, other, data):
    code = f"""
import sys, vitdense
from mmengine.registry import DATASETS, MODELS, init_default_scope
init_default_scope({scope!r})
assert MODELS.get("vitdense.Swin") is vitdense.Swin
assert DATASETS.get("vitdense.{data}")
print([name for name in ({other!r}, "timm") if name in sys.modules])
"""
    assert run_python(code).stdout.splitlines()[-1] == "[]"


def test_help_and_an_unknown_option_import_no_package_that_takes_seconds():
    code = f"""
import sys
from vitdense.__main__ import main
for command in {[*COMMANDS, *seams.merged("commands")]}:
    for words, status in ((["--help"], 0), ([command, "--help"], 0), ([command, "--no-such-option"], 2)):
        try:
            main(words)
        except SystemExit as end:
            assert end.code == status, command
    assert not {{*{HEAVY}}} & {{*sys.modules}}, command
"""
    run_python(code)
