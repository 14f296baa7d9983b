"""Around mmengine's runner: metrics, hooks, reproducible data order, checks before the start, what the tools call.

Importing this package registers the file backend ``vitdense.atomic``, and nothing else.
"""

import vitdense.engine.checkpoints  # noqa: F401
