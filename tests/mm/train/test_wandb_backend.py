import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("mmengine")
from mmengine.config import Config
from mmengine.registry import VISBACKENDS


def test_all_is_logged_over_iterations_and_no_code_is_uploaded(tmp_path, monkeypatch):
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    kwargs = {"init_kwargs": {"project": "pets"}, "save_dir": str(tmp_path)}
    backend = VISBACKENDS.build({"type": "vitdense.WandbVisBackend", **kwargs})
    image = np.zeros((2, 3, 3), np.uint8)
    backend.add_config(Config({"model": {"type": "Swin"}}))
    backend.add_scalars({"loss": 2.0, "iter": 7}, step=1)  # which may be an epoch
    backend.add_scalars({"mIoU": 30.0}, step=8, file_path="x.json")
    backend.add_image("val_0", image, step=8)
    wandb.init.assert_called_once_with(project="pets", dir=str(tmp_path))
    wandb.define_metric.assert_called_once_with("*", step_metric="iter")
    wandb.config.update.assert_called_once_with({"model": {"type": "Swin"}}, allow_val_change=True)
    assert wandb.Image.call_args.args[0] is image
    assert [call.args[0] for call in wandb.log.call_args_list] == [
        {"loss": 2.0, "iter": 7},
        {"mIoU": 30.0, "iter": 8},
        {"val_0": wandb.Image.return_value, "iter": 8},
    ]
    wandb.run.log_code.assert_not_called()
