"""A readable console for our tools: lines of mm that users cannot act on are left out, or go to the log file only.

Importing this module changes nothing, so other programs keep their output.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mmengine.logging.logger as mm_logger

# mm prints this once per package and task, where an optional package is not installed.
NOT_PRINTED = "Could not import OneDL"
# Warnings of mm about its own code, as (message, module).
NOT_WARNED = (
    # Masks of every cascade; all calls of torch go through the context that is in the second.
    ("To copy construct from a tensor", r"mmdet\.models\.roi_heads|vitdense\.inspect\.cpu"),
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
