"""The commands, one file each."""

import vitdense.mm.config  # noqa: F401  says what to install where mmengine is missing
