"""Parameters, gradients and optimizer states in shards over the processes: ``train --shard``."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"train": "vitdense.extensions.shard.options"})
