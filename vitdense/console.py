"""Printing that never raises: the reader may be gone, the disk full, a character not in the encoding."""

import os
import sys
from codecs import lookup
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from locale import getpreferredencoding
from typing import Any, TextIO


@contextmanager
def showing() -> Iterator[None]:
    """Printing to `sys.stdout` and `sys.stderr` does not raise inside this context, which may be nested."""
    out, error = _Shown(sys.stdout), _Shown(sys.stderr)
    with redirect_stdout(out), redirect_stderr(error):
        try:
            yield
        finally:  # a full buffer would raise at the end of the process
            out.flush()
            error.flush()


class _Shown:
    """A text stream that goes on to the null device once a write fails."""

    def __init__(self, stream: TextIO | None) -> None:
        # None where the process was started without one.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if hasattr(stream, "reconfigure"):
            self._try(partial(stream.reconfigure, errors="backslashreplace"))  # for characters that the encoding lacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable, *args: str) -> None:
        try:
            action(*args)
        except OSError as error:
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            self._stream.flush()
            if not isinstance(error, BrokenPipeError):  # a reader such as head left on purpose
                print(f"warning: what is printed is lost ({error.strerror}); the work goes on", file=sys.stderr)


def in_utf8() -> None:
    """Restart a command in Python's UTF-8 mode if the locale has another encoding.

    File names and text files are then UTF-8 in all packages. Printed text keeps the encoding of the terminal.
    """
    if sys.flags.utf8_mode or lookup(getpreferredencoding(False)).name == "utf-8":
        return
    encoding = getattr(sys.stdout, "encoding", "utf-8")  # None where the process was started without stdout
    os.environ.setdefault("PYTHONIOENCODING", f"{encoding}:backslashreplace")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
