"""Printing that never ends the work: the reader may be gone, the disk full, the encoding too small."""

import os
import subprocess
import sys
from codecs import lookup
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from locale import getpreferredencoding
from typing import Any, TextIO


@contextmanager
def showing() -> Iterator[None]:
    """Inside, neither printing nor flushing `sys.stdout` and `sys.stderr` raises. It may be nested."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is not None:  # as without a console on Windows
                shown = _Shown(stream)
                stack.enter_context(redirect(shown))
                stack.callback(shown.flush)  # what is left in its buffer would fail at the end of the process
        yield


class _Shown:
    """A text stream. Its file becomes the null device when it can no longer be written to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, with escapes for characters that the encoding lacks."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """Write what is in the buffer."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        self.flush()
        if not isinstance(error, BrokenPipeError):  # whose reader left on purpose
            print(f"warning: what is printed is lost ({error.strerror}); the work goes on", file=sys.stderr)


def in_utf8() -> None:
    """Start the process of a command again in Python's UTF-8 mode, where the locale has another encoding.

    Names of files and text files are UTF-8 then, for packages that do not say so too. What is shown stays in the
    encoding of the terminal.
    """
    if sys.flags.utf8_mode or "utf8" in sys._xoptions or lookup(getpreferredencoding(False)).name == "utf-8":
        return
    if sys.stdout is not None:
        os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:backslashreplace")
    command = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
    if os.name == "nt":  # where the shell does not wait for a process that takes the place of another
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)
