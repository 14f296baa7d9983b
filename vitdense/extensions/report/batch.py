"""`vitdense check --pictures`: a batch as the model will see it."""

from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS, VISUALIZERS

from vitdense.files import atomic_write
from vitdense.mm.config.base import build_loader
from vitdense.mm.config.query import nodes, type_name


def draw_batch(cfg: Config, folder: Path) -> list[Path]:
    """Draw the first batch of a training: augmented and padded images with boxes and masks, or label maps.

    Args:
        cfg: From `load_config`.
        folder: Folder of the pictures ``train_0.png`` and so on.

    Returns:
        Paths of the pictures.
    """
    loader = build_loader(cfg, "train")
    visualizer = VISUALIZERS.build({**cfg.visualizer, "vis_backends": None, "name": f"pictures in {folder}"})
    visualizer.dataset_meta = loader.dataset.metainfo
    batch = next(iter(loader))
    images = batch["inputs"]  # of [C, H, W] each
    readers = [step for step in nodes(cfg.train_dataloader.dataset) if type_name(step) == "LoadBands"]
    bands = TRANSFORMS.build(readers[0]) if readers else None
    if options := cfg.model.get("data_preprocessor") or cfg.get("data_preprocessor"):
        plain = {key: value for key, value in options.items() if key not in ("mean", "std", "bgr_to_rgb", "rgb_to_bgr")}
        images, batch["data_samples"] = MODELS.build(plain)(batch, True).values()
    paths = [folder / f"train_{i}.png" for i in range(len(batch["inputs"]))]
    for path, image, sample in zip(paths, images, batch["data_samples"]):
        instances = sample.get("gt_instances")
        if instances is not None and hasattr(instances.bboxes, "tensor"):  # mm's visualizer refuses box types
            instances.bboxes = instances.bboxes.tensor
        pixels = image.permute(1, 2, 0).numpy()  # [H, W, C]; mm loads BGR
        rgb = bands.picture(pixels) if bands else np.ascontiguousarray(pixels[..., ::-1].astype(np.uint8))
        with atomic_write(path) as scratch:
            visualizer.add_datasample(path.stem, rgb, sample, draw_pred=False, out_file=str(scratch))
    return paths
