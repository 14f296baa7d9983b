"""Training, testing and prediction by mmengine: metrics, hooks, reproducible data order, preflight checks.

Importing this package registers the file backend ``vitdense.atomic`` and nothing else.
"""

import vitdense.engine.checkpoints  # noqa: F401
