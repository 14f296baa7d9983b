"""The losses of fifty steps of every nano recipe are those that were stored: ``make test WHAT=losses``.

They are of one machine; another one's sums differ in their last digits, and fifty steps enlarge that. After a change
that is meant to alter them: ``make test WHAT=losses UPDATE=1``.
"""

import json
import os

import pytest
from conftest import RECIPES, REPO

from vitdense.files import atomic_write
from vitdense.mm.checkpoints import read_checkpoint
from vitdense.mm.config.load import load_config
from vitdense.mm.train import launch

pytestmark = pytest.mark.slow
STORED, STEPS, TOLERANCE = REPO / "tests/data/losses.json", 50, 1e-4  # relative
NANO = sorted(path.stem for path in RECIPES if path.stem.endswith("_nano_shapes"))


@pytest.mark.parametrize("recipe", NANO)
def test_losses_of_fifty_steps(recipe, tmp_path):
    cfg = load_config(recipe, {"data_root": f"{tmp_path}/shapes/"}, str(tmp_path / "work"))
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    for split in ("train", "val", "test"):
        cfg[f"{split}_dataloader"].dataset.draw = dict(num_train=96, num_val=1)
    cfg.train_cfg.update(max_iters=STEPS, val_interval=1000)
    cfg.param_scheduler = [dict(type="LinearLR", start_factor=0.01, by_epoch=False, begin=0, end=STEPS)]
    cfg.default_hooks.checkpoint.update(interval=STEPS, save_best=None)
    launch.train(cfg)
    hub = read_checkpoint(str(tmp_path / f"work/iter_{STEPS}.pth"))["message_hub"]
    losses = [round(float(x), 6) for x in hub["log_scalars"]["train/loss"].data[0]]
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("UPDATE"):
        with atomic_write(STORED) as scratch:
            lines = (f"{json.dumps(name)}: {json.dumps(x)}" for name, x in sorted({**stored, recipe: losses}.items()))
            scratch.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    else:
        assert losses == pytest.approx(stored[recipe], rel=TOLERANCE)
