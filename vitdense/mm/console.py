"""How our commands end, and which warnings they hide. Importing this module changes nothing."""

import errno
import gc
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vitdense.checkpoint.errors import CheckpointNotFoundError
from vitdense.console import showing
from vitdense.errors import OptionError
from vitdense.files import FULL
from vitdense.mm.processes import StopSignal, handling_stops, stop_at_once

# Warnings of mm and torch about their own code.
NOT_WARNED = (
    *("To copy construct from a tensor", "DeprecationWarning: `num_anchors`", "Default ``avg_non_ignore``"),
    *(r"Warning: The \w+ is out of bounds", r"torch\.meshgrid", r"`isinstance\(treespec, LeafSpec\)`"),
)
USER_ERRORS = (OptionError, OSError)  # errors that a user can fix; see `explain`
LIMITS = (*FULL, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors from limits of the machine


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """For commands: exit with a message on `USER_ERRORS`, with 130 and a line on Ctrl-C, and likewise on the signals
    `STOPS`. Printing never raises inside, and warnings `NOT_WARNED` are hidden from then on."""
    if not gc.get_freeze_count():  # what is imported stays: no collection looks at it again
        gc.freeze()
        gc.enable()
    for message in NOT_WARNED:
        warnings.filterwarnings("ignore", message)
    with showing():
        try:
            with handling_stops(stop_at_once):
                yield
        except (KeyboardInterrupt, StopSignal) as stop:
            print(f"\n{str(stop) or 'stopped'}", file=sys.stderr)
            sys.exit(128 + getattr(stop, "signum", signal.SIGINT))  # as a shell reports it
        except USER_ERRORS as error:
            print(f"error: {explain(error)}", file=sys.stderr)
            sys.exit(getattr(error, "status", 2))  # 1 where a part is done


def explain(error: Exception) -> str:
    """The message of one of `USER_ERRORS`.

    An OSError that names no file, and is not from a limit of the machine, is raised: it is a bug.
    """
    if isinstance(error, (OptionError, CheckpointNotFoundError)):  # str() drops the trace of a data worker
        return re.split(r"(?m)^[\w.]*(?:Error|Exception): ", str(error))[-1].strip()
    if error.strerror is None or (error.filename is None and error.errno not in LIMITS):
        raise error
    return f"{error.filename or 'this machine'}: {error.strerror}"


def result_commands(config: str, work_dir: str) -> list[str]:
    """Shell commands to evaluate a trained model and to predict with it."""
    config, work_dir = shlex.quote(config), shlex.quote(work_dir)
    return [f"vitdense test {config} {work_dir}", f"vitdense predict {config} {work_dir} IMAGES"]
