"""Text files are UTF-8 whatever the locale: in our own lines, and in what others read for our commands."""

import ast
import os
import subprocess
import sys

import pytest
from conftest import REPO

from vitdense.errors import OptionError
from vitdense.files import read_text


def text_calls(tree):
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = getattr(getattr(call.func, "value", None), "id", "")
        options = {keyword.arg for keyword in call.keywords}
        values = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        binary = any(isinstance(value, str) and "b" in value and len(value) < 4 for value in values)
        is_open = name in ("open", "fdopen") and owner not in ("Image", "os", "zipfile", "tarfile") and not binary
        if is_open or (name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)):
            yield name, options, call


@pytest.mark.parametrize("folder", ["vitdense", "tools", "scripts"])
def test_every_text_file_has_an_encoding(folder):
    wrong = []
    for file in (REPO / folder).rglob("*.py"):
        for name, options, call in text_calls(ast.parse(file.read_bytes())):
            needed = {"encoding", "errors"} if name == "read_text" and file.name != "files.py" else {"encoding"}
            if not needed <= options:
                wrong.append(f"{file.relative_to(REPO)}:{call.lineno}: {ast.unparse(call)}")
    assert not wrong, "read by vitdense.files.read_text, write with encoding='utf-8'"


@pytest.mark.parametrize("content", [b"h\xc3\xbcndin\n", b"\xef\xbb\xbfh\xc3\xbcndin\r\n"])
def test_text_with_and_without_a_byte_order_mark(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    assert read_text(tmp_path / "a.txt") == "h\xfcndin\n"


def test_another_encoding_names_the_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"h\xfcndin")
    with pytest.raises(OptionError, match=r"a\.txt.*UTF-8"):
        read_text(tmp_path / "a.txt")


@pytest.mark.skipif(sys.platform != "linux", reason="locales of Linux")
def test_a_command_in_an_ascii_locale_reads_and_names_files_in_utf8(tmp_path):
    (tmp_path / "h\xfcndin.txt").write_text("h\xfcndin", encoding="utf-8")
    program = (
        "from vitdense.console import in_utf8; in_utf8(); import os; name, = os.listdir(); "
        "print(ascii(name), ascii(open(name).read())); print(name)"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(REPO)}
    env.pop("PYTHONIOENCODING", None)
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, check=True)
    assert run.stdout.splitlines() == [rb"'h\xfcndin.txt' 'h\xfcndin'", rb"h\xfcndin.txt"]
