"""Types: the classes that a config names are registered. Those of the model are found when it is built."""

from collections.abc import Iterator, Mapping, Sequence

from mmengine import registry
from mmengine.config import Config

from vitdense.mm.checks.base import Finding
from vitdense.mm.config.build import unknown_type
from vitdense.mm.config.query import as_list, find_class, hooks, leaf_datasets


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    named = [(where, registry.HOOKS, hook) for where, hook in hooks(cfg)]
    if "train" in splits:
        wrapper, steps = cfg.get("optim_wrapper") or {}, as_list(cfg.get("param_scheduler"))
        named += [("optim_wrapper", registry.OPTIM_WRAPPERS, wrapper)]
        named += [("optim_wrapper.optimizer", registry.OPTIMIZERS, wrapper.get("optimizer"))]
        named += [(f"param_scheduler.{i}", registry.PARAM_SCHEDULERS, step) for i, step in enumerate(steps)]
    for split in splits:
        loader, metrics = cfg.get(f"{split}_dataloader") or {}, as_list(cfg.get(f"{split}_evaluator"))
        named += [(f"{split}_evaluator", registry.METRICS, metric) for metric in metrics]
        named += [(f"{split}_dataloader.sampler", registry.DATA_SAMPLERS, loader.get("sampler"))]
        named += [
            (f"{split}_dataloader.dataset.pipeline.{i}", registry.TRANSFORMS, step)
            for dataset in (leaf_datasets(loader.dataset) if loader else ())
            for i, step in enumerate(dataset.get("pipeline") or ())
        ]
    for where, registered, part in named:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is not None and find_class(registered, kind, cfg) is None:
            yield unknown_type(where, kind, cfg, (registered,))
