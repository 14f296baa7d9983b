"""Make the golden files of RF-DETR, of the authors' wheel and of transformers, and of transformers' LW-DETR:
tests/data/golden/{rfdetr,lwdetr}_*.

Both need transformers 5, which cannot be imported next to mmpretrain, so they are in an environment of their own:

    pip install rfdetr==1.11.2 transformers==5.24.0 torch==2.11.0
    python scripts/golden_rfdetr.py tests/data/golden

Weights are drawn by their names, see `tests/rfdetr_drawn.py`; the files hold outputs, and names and shapes.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import transformers
from rfdetr import config as variants
from rfdetr.models import build_criterion_from_config, build_model_from_config
from rfdetr_drawn import normal, same_points, targets, weights, with_keypoints

SIZES = ("Nano", "Small", "Medium", "Large")
SIZES = (*SIZES, *(f"Seg{size}" for size in (*SIZES, "XLarge", "2XLarge")), "KeypointPreview")
TRAIN = {"resolution": 128, "num_queries": 20, "num_select": 20}
RECTANGLES = {"Nano": ((288, 512), (512, 288), (192, 704)), "SegNano": ((240, 384), (360, 264))}
CLASSES, QUERIES, PIXELS = slice(None, None, 7), slice(None, None, 10), slice(None, None, 3)  # that are kept


def build(size: str, **options: int) -> tuple[nn.Module, variants.ModelConfig]:
    """A model of the authors with drawn weights."""
    if "Keypoint" in size:
        options = {"num_classes": 0, **options}  # the class with keypoints, and no other output
    cfg = getattr(variants, f"RFDETR{size}Config")(pretrain_weights=None, device="cpu", **options)
    model = build_model_from_config(cfg)
    fill(model)
    return model, cfg


def fill(model: nn.Module) -> None:
    """Draw the weights."""
    state = model.state_dict()
    drawn = weights({key: tuple(x.shape) for key, x in state.items() if x.is_floating_point()})
    model.load_state_dict({**state, **drawn})


def kept(start: str, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """A part of what is predicted."""
    logits = found["pred_logits" if "pred_logits" in found else "logits"]
    out = {f"{start}/logits": logits[..., CLASSES], f"{start}/boxes": found["pred_boxes"]}
    if found.get("pred_keypoints") is not None:
        out[f"{start}/keypoints"] = found["pred_keypoints"]
    if found.get("pred_masks") is not None:
        out[f"{start}/masks"] = found["pred_masks"][:, QUERIES, PIXELS, PIXELS]
    return out


@torch.no_grad()
def predictions(size: str, shapes: tuple[tuple[int, int], ...]) -> dict[str, Tensor]:
    """Outputs for images (h, w), and the boxes of the first stage, which show what was selected."""
    model, out = build(size)[0].eval(), {}
    for h, w in shapes:
        found = model(normal("image", 1, 3, h, w))
        out |= kept(f"{h}x{w}", found) | {f"{h}x{w}/selected": found["enc_outputs"]["pred_boxes"]}
    return out


def criterion_of(size: str, cfg: variants.ModelConfig) -> tuple[nn.Module, nn.Module]:
    """The authors' losses, and what makes results."""
    kinds = {"Nano": variants.TrainConfig, "KeypointPreview": variants.KeypointTrainConfig}
    kind = kinds.get(size, variants.SegmentationTrainConfig)
    return build_criterion_from_config(cfg, kind(dataset_dir=".", output_dir="."))


@torch.no_grad()
def results(side: int) -> dict[str, Tensor]:
    """Scores and keypoints of the objects of an image, by the model with keypoints."""
    model, cfg = build("KeypointPreview")
    _, make = criterion_of("KeypointPreview", cfg)
    (found,) = make(model.eval()(normal("image", 1, 3, side, side)), torch.tensor([[side, side]]))
    return {name: found[name] for name in ("scores", "keypoints")}


def training(size: str, shape: tuple[int, int] | None = None) -> dict[str, Tensor]:
    """Losses, weighted, of three images, one without objects, and some gradients."""
    model, cfg = build(size, **TRAIN, positional_encoding_size=TRAIN["resolution"] // (16 if size == "Nano" else 12))
    h, w = shape or ((128, 128) if size == "Nano" else (120, 120))
    criterion, _ = criterion_of(size, cfg)
    truths = targets(h, (4, 0, 2), w)
    if "Keypoint" in size:
        truths = with_keypoints(truths)
    if "Seg" not in size:
        truths = [{key: x for key, x in truth.items() if key != "masks"} for truth in truths]
    model.train(), criterion.train()
    with same_points():
        losses = criterion(model(normal("images", 3, 3, h, w)), truths)
    weighted = {key: losses[key] * factor for key, factor in criterion.weight_dict.items() if key in losses}
    sum(weighted.values()).backward()
    out = {f"loss/{key}": x.detach() for key, x in weighted.items()}
    for key, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.numel() < 600 and "encoder.layer." not in key:
            out[f"grad/{key}"] = parameter.grad
    return out


def at_rectangles() -> dict[str, Tensor]:
    """Outputs of models for squares on rectangles, of every tenth query, and losses."""
    out = {}
    for size, shapes in RECTANGLES.items():
        found = {key: x[:, QUERIES] if "masks" not in key else x for key, x in predictions(size, shapes).items()}
        out |= {f"{size}/{key}": x for key, x in found.items() if "selected" not in key}
        found = training(size, (96, 160 if size == "Nano" else 168))
        out |= {f"{size}/{key}": x for key, x in found.items() if key.startswith("loss/")}
    return out


def of_transformers(masks: bool) -> tuple[dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """Outputs of transformers' model of the size N, and its names and shapes."""
    trunk = {
        **{"hidden_size": 384, "num_attention_heads": 6, "patch_size": 12 if masks else 16},
        "num_windows": 1 if masks else 2,
        "image_size": 312 if masks else 384,
        "window_block_indexes": [0, 1, 2, 4, 5, 7, 8, 10, 11],
        "out_features": [f"stage{i}" for i in (3, 6, 9, 12)],
        "out_indices": None,
    }
    cfg = transformers.RfDetrConfig(
        backbone_config={"model_type": "rf_detr_dinov2", **trunk},
        num_labels=91,
        decoder_layers=4 if masks else 2,
        decoder_n_points=2,
        num_queries=100 if masks else 300,
    )
    kind = transformers.RfDetrForInstanceSegmentation if masks else transformers.RfDetrForObjectDetection
    model = kind(cfg).eval()
    fill(model)
    for name, part in model.named_modules():  # transformers has the eps of the decoder there, the authors this one
        if "projector" in name and name.endswith(".norm"):
            part.eps = 1e-6
    side = trunk["image_size"]
    with torch.no_grad():
        found = model(normal("image", 1, 3, side, side))
    return kept(f"{side}x{side}", found), {key: tuple(x.shape) for key, x in model.state_dict().items()}


@torch.no_grad()
def of_lwdetr() -> tuple[dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """Outputs of transformers' LW-DETR tiny, the boxes of its first stage, and its names and shapes."""
    cfg = transformers.LwDetrConfig(
        backbone_config={
            **{"model_type": "lw_detr_vit", "image_size": 1024, "hidden_size": 192, "num_hidden_layers": 6},
            "window_block_indices": [0, 2, 4],
            "out_indices": [2, 4, 6],  # 0 is the stem
        },
        num_labels=91,
        projector_scale_factors=[1.0],
        num_queries=100,
        decoder_n_points=2,
    )
    model, out = transformers.LwDetrForObjectDetection(cfg).eval(), {}
    fill(model)
    for h, w in ((640, 640), (512, 704)):
        found = model(normal("image", 1, 3, h, w))
        out |= kept(f"{h}x{w}", found) | {f"{h}x{w}/selected": found.enc_outputs_coord_logits}
    return out, {key: tuple(x.shape) for key, x in model.state_dict().items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    files = {
        "rfdetr_n": predictions("Nano", ((384, 384), (320, 448))),
        "rfdetr_seg_n": predictions("SegNano", ((312, 312),)),
        # At a size of fewer pixels than their own.
        "rfdetr_seg_xl": predictions("SegXLarge", ((312, 312),)),
        "rfdetr_seg_2xl": predictions("Seg2XLarge", ((312, 360),)),
        "rfdetr_keypoints": {**predictions("KeypointPreview", ((288, 288),)), **results(288)},
        "rfdetr_rectangles": at_rectangles(),
        "rfdetr_n_train": training("Nano"),
        "rfdetr_seg_n_train": training("SegNano"),
        "rfdetr_keypoints_train": training("KeypointPreview"),
    }
    shapes: dict[str, dict] = {}
    for name, masks in (("rfdetr_transformers_n", False), ("rfdetr_transformers_seg_n", True)):
        files[name], shapes[name] = of_transformers(masks)
    files["lwdetr_t"], shapes["lwdetr_t"] = of_lwdetr()
    for size in SIZES:
        with torch.device("meta"):
            cfg = getattr(variants, f"RFDETR{size}Config")(pretrain_weights=None, device="meta")
            model = build_model_from_config(cfg)
        shapes[size] = {key: tuple(x.shape) for key, x in model.state_dict().items()}
    for name, tensors in files.items():
        save_file({key: x.contiguous() for key, x in tensors.items()}, folder / f"{name}.safetensors")
    rows: dict[str, dict[str, list]] = {}  # of each key: the models that have it, by its shape there
    for name, of_model in shapes.items():
        for key, shape in of_model.items():
            rows.setdefault(key, {}).setdefault("x".join(map(str, shape)), []).append(list(shapes).index(name))
    with open(folder / "rfdetr_keys.json", "w", encoding="utf-8") as file:
        json.dump({"models": list(shapes), "keys": rows}, file, separators=(",", ":"))
