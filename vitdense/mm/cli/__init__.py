"""The commands, one file each."""

import vitdense.mm.config  # noqa: F401  its error says what to install if mmengine is missing
