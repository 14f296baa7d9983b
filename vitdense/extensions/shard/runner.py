"""The runner of a training in shards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmengine.runner
from mmengine.dist import barrier, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import EMAHook, Hook
from torch import Tensor, nn

from vitdense.checkpoint.convert import write_torch
from vitdense.extensions.shard.shard import is_finite, save_parts, shard
from vitdense.files import remove
from vitdense.mm.checkpoints import REST, SCRATCH, read_checkpoint, read_parts
from vitdense.mm.train.runner import Runner
from vitdense.mm.work_folder import WorkFolder


class NowhereBackend(LocalBackend):
    """The backend of processes that take part in a save and write nothing."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        pass


register_backend("vitdense.nowhere", NowhereBackend)


class SavePartsHook(Hook):
    """Every process writes its parts of a checkpoint."""

    priority = "LOWEST"  # after hooks that add to the checkpoint, such as an average of weights

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        checkpoint.update(save_parts(checkpoint, runner.parts))


class ShardedRunner(Runner):
    """A `Runner` that shards the model once its weights are loaded. A checkpoint is a folder."""

    parts: Path  # folder of the checkpoint being saved

    def register_hooks(self, default_hooks: dict | None = None, custom_hooks: Sequence | None = None) -> None:
        super().register_hooks(default_hooks, custom_hooks)
        self.register_hook(SavePartsHook())

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Keep the model in host memory until its weights are loaded."""
        return self.without_sync_bn(model)

    def load_or_resume(self) -> None:
        """Load as mmengine does; then every process keeps its part."""
        super().load_or_resume()
        shard(self.model, self.optim_wrapper.optimizer)
        for hook in self.hooks:
            if isinstance(hook, EMAHook):
                average = hook.ema_model
                shard(average.module)
                of = average.module.state_dict() if average.update_buffers else average.module.named_parameters()
                average.avg_parameters = dict(of)

    def resume(self, *args: Any, **kwargs: Any) -> None:
        """Resume as `Runner` does, but in host memory: no device has room for all parts."""
        super().resume(*args, **{**kwargs, "map_location": "cpu"})

    def is_finite(self, x: Tensor) -> bool:
        """Whether all parts of a tensor are finite."""
        return is_finite(x)

    def are_finite(self, gradients: Sequence[Tensor]) -> bool:
        """Whether all parts of gradients are finite, by their norm."""
        return self.is_finite(nn.utils.get_total_norm(gradients))

    def write(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        """All processes write their parts and the main one the rest; the folder appears when it is complete."""
        self.parts, folder = Path(out_dir, SCRATCH), Path(out_dir, filename)
        if is_main_process():
            remove(self.parts)
            self.parts.mkdir(parents=True)
        barrier()
        backend = {"backend_args": {"backend": "vitdense.atomic" if is_main_process() else "vitdense.nowhere"}}
        save = mmengine.runner.Runner.save_checkpoint.__wrapped__  # in all processes
        save(self, str(self.parts), REST, *args, **{**kwargs, **backend})
        if is_main_process():
            old = Path(out_dir, f"{SCRATCH}.old")  # a kill while removing the folder would lose both
            if folder.exists():
                folder.rename(old)
            self.parts.rename(folder)
            remove(old)
        barrier()

    def train(self) -> nn.Module:
        """Train as `Runner` does; then also save the weights of the last checkpoint in one file."""
        trained = super().train()
        if is_main_process():
            folder = WorkFolder(self.work_dir)
            rest = read_checkpoint(str(folder.latest / REST))
            needed = {key: rest[key] for key in ("meta", "state_dict", "parts")}
            write_torch(read_parts(folder.latest, needed), folder.weights)
            self.logger.info(f"the weights, in one file: {folder.weights}")
        return trained
