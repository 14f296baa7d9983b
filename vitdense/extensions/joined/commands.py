"""Predict with several models on one trunk, or export them as one program."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config
from torch import Tensor, nn

from vitdense.extensions.joined.model import Joined, SharedTrunk
from vitdense.mm.cli.export import Made, Wish, write
from vitdense.mm.cli.predict import checked, list_images, run
from vitdense.mm.errors import ConfigError
from vitdense.mm.export.tasks import Part, Task
from vitdense.mm.precision import Inference
from vitdense.mm.predictor import Predictor

Models = Mapping[str, tuple[Config, str]]  # config and checkpoint, by the name of the model


def predict_joined(
    models: Models,
    images: Sequence[str | Path],
    out_dir: Path,
    inference: Inference = Inference(),  # noqa: B008 -- frozen
    as_dataset: bool = False,
    as_indices: bool = False,
    as_training: bool = False,
) -> list[Path]:
    """Predict on images with several models, each into a folder of its name; see `vitdense.mm.cli.predict.predict`."""
    found = list_images(images)
    kinds = {name: checked(cfg, found, out_dir / name, as_training) for name, (cfg, _) in models.items()}
    joined = Joined({name: Predictor(*trained, inference) for name, trained in models.items()})
    tasks = []
    for name, model in joined.models.items():
        kind, root = kinds[name]
        tasks.append(kind(model, out_dir / name, found, root, as_dataset, as_indices))
    return run(Tasks(tasks, joined.trunk), found)


class Tasks:
    """The tasks of several models on an image, by one pass of their trunk."""

    def __init__(self, tasks: Sequence, trunk: SharedTrunk) -> None:
        self.tasks, self.trunk = tasks, trunk

    def add(self, image: Path) -> None:
        with self.trunk.once():
            for task in self.tasks:
                task.add(image)

    def save(self) -> None:
        for task in self.tasks:
            task.save()

    def finish(self) -> list[Path]:
        return [task.finish() for task in self.tasks]


def export_joined(models: Models, wish: Wish, args: argparse.Namespace | None = None) -> str:
    """Export several models as one program; see `vitdense.mm.cli.export.export`."""
    if wish.int8 or wish.maps:
        raise ConfigError("--joined: got --int8 or --maps, expected neither")
    joined = Joined({name: wish.load(*trained) for name, trained in models.items()})
    named = enumerate(joined.models.items())
    parts = [Part(name, model, False, f"tasks.{i}.", wish.precision) for i, (name, model) in named]
    task = JoinedTask({part.name: part.task for part in parts}, joined.trunk).eval()
    return write(Made(wish, task, parts), args)


class JoinedTask(Task):
    """The outputs of several models on one trunk, named ``MODEL/OUTPUT``.

    Args:
        tasks: The tasks by the names of their models.
        trunk: The shared trunk.
    """

    def __init__(self, tasks: Mapping[str, Task], trunk: SharedTrunk) -> None:
        super().__init__(trunk)
        self.names, self.tasks = [*tasks], nn.ModuleList(tasks.values())

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        with self.model.once():
            outs = [task(image) for task in self.tasks]
        return {f"{name}/{key}": x for name, out in zip(self.names, outs) for key, x in out.items()}
