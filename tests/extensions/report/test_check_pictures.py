"""Pictures of a batch as the model will see it."""

import numpy as np
import pytest
from mmengine.runner import Runner
from PIL import Image

from vitdense.extensions.report.batch import draw_batch
from vitdense.mm.config.load import load_config


@pytest.mark.parametrize("name", ["cascade_swin_nano_shapes", "upernet_swin_nano_shapes"])
def test_a_picture_per_image_of_the_first_batch(name, tmp_path):
    """A picture is the model's padded image, changed only where objects are drawn."""
    draw = {"num_train": 4, "num_val": 2, "image_size": (96, 128), "workers": 1}
    options = {"data_root": str(tmp_path / "shapes"), "train_dataloader.dataset.draw": draw}
    options |= {"train_dataloader.num_workers": 0, "train_dataloader.persistent_workers": False}
    cfg = load_config(name, {**options, "train_dataloader.batch_size": 3})
    paths = draw_batch(cfg, tmp_path / "pictures")
    assert [path.name for path in paths] == ["train_0.png", "train_1.png", "train_2.png"]
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    drawn = []
    for path, image, sample in zip(paths, batch["inputs"], batch["data_samples"], strict=True):
        with Image.open(path) as picture:
            height, width = image.shape[1:]
            if name.startswith("upernet"):
                assert picture.size == (256, 256)
            changed = np.asarray(picture)[:height, :width] != image.flip(0).permute(1, 2, 0).numpy()  # RGB
        has_objects = len(sample.gt_instances) > 0 if "gt_instances" in sample else True
        assert changed.any() == has_objects
        drawn.append(has_objects)
    assert any(drawn)
