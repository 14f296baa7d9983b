"""Names of version 0.2 work, or say what they are now."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
from conftest import HAS_RESEARCH

from vitdense.moved import MOVED


@pytest.mark.parametrize("old", [old for old in MOVED if HAS_RESEARCH or not MOVED[old].startswith("research")])
def test_an_old_module_names_a_new_one(old):
    folder, _, name = f"vitdense.{re.match(r'[A-Za-z0-9_.]+', MOVED[old])[0]}".rpartition(".")
    assert hasattr(import_module(folder), name) or find_spec(f"{folder}.{name}")
    with pytest.raises(ImportError, match=re.escape(f"vitdense.{old} is vitdense.{MOVED[old]}")):
        import_module(f"vitdense.{old}")


def test_what_was_in_a_folder_names_that_of_the_folder():
    with pytest.raises(ImportError, match=r"vitdense\.weights is vitdense\.checkpoint"):
        import_module("vitdense.weights.load")
    with pytest.raises(ImportError, match=r"vitdense\.inspect\.draw"):
        from vitdense import draw  # noqa: F401
    with pytest.raises(ImportError, match=r"vitdense\.hub\.create"):
        from vitdense.models import create  # noqa: F401


def test_what_is_absent_is_absent_as_ever():
    assert find_spec("vitdense.nothing") is None
    import vitdense

    assert not hasattr(vitdense, "draw")


@pytest.mark.long
def test_registry_is_where_mmengine_looks_for_it():
    code = "import vitdense.registry as r, vitdense.mm.registry as m; assert r.MODELS is m.MODELS"
    subprocess.run([sys.executable, "-c", code], check=True)
