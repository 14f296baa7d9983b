"""Models from configs, without a runner."""

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn


def build_model(cfg: Config) -> nn.Module:
    """The model of a config as one process uses it: not initialised, SyncBN as BN."""
    init_default_scope(cfg.get("default_scope", "mmdet"))
    return revert_sync_batchnorm(MODELS.build(cfg.model))
