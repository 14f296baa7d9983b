"""Around the training loop: metrics, hooks, reproducible data order, safe files, checks before the start.

Importing this package makes the file backend ``vitdense.atomic`` known to mmengine, and lets it load checkpoints by
`vitdense.weights.read`.
"""

import vitdense.engine.checkpoints
import vitdense.engine.files  # noqa: F401
