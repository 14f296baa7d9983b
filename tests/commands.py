"""Commands as users type them, in this process or in one of their own."""

import contextlib
import gc
import io
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import traceback

from conftest import REPO
from mmengine.utils import ManagerMixin

from vitdense.__main__ import main


def forget() -> None:
    """Make the process as new: mmengine has loggers, visualizers and default scopes once."""
    kinds = [ManagerMixin]
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        kind._instance_dict.clear()


def run_command(words: list[str]) -> tuple[int | None, str]:
    """Run `vitdense WORDS`; return its status, None for an error that it does not name, and what it printed.

    No garbage is collected meanwhile: up to CPython 3.11.7 a collection within `ast.parse`, by which configs are read,
    lets another thread parse, and both lose count of their depth (SystemError, python/cpython#106905).
    """
    forget()
    gc.collect()
    gc.disable()
    argv, out = sys.argv, io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            status = None
            traceback.print_exc()
        finally:
            sys.argv = argv
            gc.enable()
    return status, out.getvalue()


def succeed(words: list) -> str:
    """Run `vitdense WORDS`, which must succeed; return what it printed."""
    words = [*map(str, words)]
    status, printed = run_command(words)
    said = "\n".join(re.findall(r"(?m)^(?:error:|.*WARNING).*", printed)) or printed[-3000:]
    assert status == 0, f"vitdense {shlex.join(words)}: {said}"
    return printed


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}


def start_tool(name: str, *args: object, limit: int = resource.RLIM_INFINITY) -> subprocess.Popen:
    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells ignore it in the background

    return subprocess.Popen(
        [sys.executable, f"tools/{name}.py", *map(str, args)],
        cwd=REPO,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=prepare,
    )
