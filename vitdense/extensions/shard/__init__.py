"""Parameters, gradients and optimizer states in parts over the processes: ``train --shard``."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"train": "vitdense.extensions.shard.options"})
