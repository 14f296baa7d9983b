"""A readable console for our tools: lines of mm that users cannot act on are left out, or go to the log file only.

Importing this module changes nothing, so other programs keep their output.
"""

import errno
import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mmengine.logging.logger as mm_logger

import vitdense
from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.console import showing
from vitdense.errors import OptionError
from vitdense.files import FULL
from vitdense.mm.processes import StopSignal, handling_stops, stop_at_once

# mm prints this once per package and task, where an optional package is not installed.
NOT_PRINTED = "Could not import OneDL"
# Warnings of mm about its own code, as (message, module).
NOT_WARNED = (
    # Masks of every cascade; all calls of torch go through the context that is in the second.
    ("To copy construct from a tensor", r"mmdet\.models\.roi_heads|vitdense\.layers\.onednn"),
    (r"Warning: The \w+ is out of bounds", r"mmengine\.visualization"),  # objects at the border of the image
    ("DeprecationWarning: `num_anchors`", r"mmdet\.models\.dense_heads"),
    ("Default ``avg_non_ignore``", r"mm(det|seg)\.models\.losses"),  # of segmentors and HTC
    (r"torch\.meshgrid", r"torch\.functional"),  # of positional encodings
    (r"`isinstance\(treespec, LeafSpec\)`", "copyreg"),  # of torch itself, in exports
)
# Records of the runner, by text in their first line or two.
LOG_FILE_ONLY = (
    *("System environment:", "Config:\n", "Hooks will be executed in the following order"),
    *('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', "SyncBatchNorm (SyncBN) layers"),
    "The prefix is not set in metric class",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out `NOT_PRINTED` and `NOT_WARNED`. It may be nested."""
    own = "print" in vars(mm_logger)  # of a block around this one

    def print_others(text: Any) -> None:
        if not str(text).startswith(NOT_PRINTED):
            print(text)

    with warnings.catch_warnings():
        for message, module in NOT_WARNED:
            warnings.filterwarnings("ignore", message, Warning, module)
        if not own:
            mm_logger.print = print_others  # in place of the built-in, in that module only
        try:
            yield
        finally:
            if not own:
                del mm_logger.print


def for_console(record: logging.LogRecord) -> bool:
    """Whether the console shows a record of the runner."""
    return not any(text in record.getMessage()[:200] for text in LOG_FILE_ONLY)


# Errors that a user can fix; a stack trace would only hide the message.
USER_ERRORS = (
    OptionError,  # its stack trace may be that of a data worker
    CheckpointNotFoundError,
    OSError,  # of a file, or a limit of the machine; see `explain`
)


LIMITS = (*FULL, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the machine


TOOLS = (Path(vitdense.__file__).parent / ".mim/tools").resolve()  # in a clone, its tools/


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Exit with status 2 and one message on an error that a user can fix, with 130 and one line on Ctrl-C.

    These errors are `USER_ERRORS`. Inside, mm is `quiet`, printing never raises, see `showing`, and the signals `STOPS`
    end with one line and their status.
    """
    with showing():
        try:
            with quiet(), handling_stops(stop_at_once):
                yield
        except KeyboardInterrupt as stop:
            print(f"\n{stop or 'stopped'}", file=sys.stderr)
            sys.exit(130)  # as a shell reports SIGINT
        except StopSignal as stop:
            print(stop, file=sys.stderr)
            sys.exit(128 + stop.signum)
        except USER_ERRORS as error:
            print(f"error: {explain(error)}", file=sys.stderr)
            sys.exit(getattr(error, "status", 2))


def explain(error: Exception) -> str:
    """One of `USER_ERRORS` in words.

    Raises:
        OSError: `error`, if it names no file and is of no limit of the machine: the fault is ours.
    """
    if isinstance(error, OSError) and not isinstance(error, CheckpointNotFoundError):
        if error.strerror is None or (error.filename is None and error.errno not in LIMITS):
            raise error
        return f"{error.filename or 'this machine'}: {error.strerror}"
    # Without the trace of a data worker.
    return re.split(r"(?m)^[\w.]*(?:Error|Exception): ", str(error))[-1].strip()


def command_line(tool: str) -> str:
    """How to call one of our tools from the working folder: by its file in that of a clone, else as a command."""
    return f"python tools/{tool}.py" if Path.cwd() / "tools" == TOOLS else f"vitdense {tool}"


def result_commands(config: str, work_dir: str) -> list[str]:
    """The commands that evaluate a trained model and predict with it, as a shell takes them."""
    config, work_dir = shlex.quote(config), shlex.quote(work_dir)
    return [f"{command_line('test')} {config} {work_dir}", f"{command_line('predict')} {config} {work_dir} IMAGES"]
