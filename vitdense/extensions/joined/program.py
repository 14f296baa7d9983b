"""A file of ``vitdense export --joined`` without torch: several models on one trunk, which runs once.

This file needs only `vitdense.runtime`: copy both.
"""

import os

import numpy as np

if __package__:
    from vitdense import runtime
else:
    import runtime


class Joined:
    """An ONNX file of ``vitdense export --joined``.

    Args:
        path, engine, threads, **options: See `vitdense.runtime.Program`.

    Attributes:
        models: The models by name, a `vitdense.runtime.Program` each.

    Raises:
        ValueError: See `vitdense.runtime.Program`.
    """

    def __init__(
        self, path: str | os.PathLike, engine: str = "onnxruntime", threads: int = 0, **options: object
    ) -> None:
        opened = runtime.open_engine(path, engine, threads, **options)
        self.models = {name: runtime.Program(path, opened, model=name) for name in runtime.models_of(opened)}

    def __call__(self, image: np.ndarray, score_thr: float | None = None) -> dict[str, runtime.Output]:
        """What each model finds, by its name; see `vitdense.runtime.Program`."""
        first, *_ = self.models.values()
        outputs = first.run(first.batch(image))
        return {name: model.read(outputs, image.shape[:2], score_thr) for name, model in self.models.items()}
