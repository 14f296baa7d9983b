"""Published features of released weights: the end-to-end check of a file that only its owner can run."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.families import find_model
from vitdense.hub import create

IMAGE = "000000039769.jpg"  # of COCO val2017
# The first channels of the class token and of the first patch after the last norm, for IMAGE at 224x224. Source:
# huggingface/transformers, src/transformers/models/dinov3_vit/convert_dinov3_vit_to_hf.py (Apache-2.0).
FINGERPRINTS = {
    "dinov3_small.fb_lvd1689m": (
        (0.4635618, -0.4156094, 0.4082369, -0.1266134, -0.2866369),
        (-0.0387542, -0.2508954, -0.0163929, -0.4554736, 0.5715822),
    ),
    "dinov3_small_plus.fb_lvd1689m": (
        (-0.4713494, -1.3657789, -0.3179832, 0.3772194, -0.7690857),
        (0.1445519, -0.3881175, -0.3934340, -0.1576955, -0.6003801),
    ),
    "dinov3_base.fb_lvd1689m": (
        (1.0346432, -0.1806093, -0.3410183, -0.0663770, -0.0113840),
        (-0.0825237, -0.4562728, -0.7280300, -0.4306802, -0.1528802),
    ),
    "dinov3_large.fb_lvd1689m": (
        (0.4845271, -0.5822147, 0.4806361, 0.5920404, 0.9451665),
        (-0.2113674, -0.4908636, -0.2571315, 0.1017639, 0.1545112),
    ),
    "dinov3_huge_plus.fb_lvd1689m": (
        (-0.0645759, -0.1488668, -0.6215244, 0.6348788, 0.1526957),
        (-0.0938174, 0.2874072, -0.0500369, 0.4280432, 0.0945618),
    ),
    "dinov3_7b.fb_lvd1689m": (
        (0.2754395, -0.2613540, 0.0677720, 0.0499362, -0.1587471),
        (0.0444420, -0.0525421, 0.0707775, -0.0651117, -0.0265465),
    ),
}
# transformers reaches these figures to 1e-4. Other decoders and devices round otherwise; a wrong norm, table of
# rotary positions or order of channels differs by 0.01 and more.
TOLERANCE = 1e-3


@torch.no_grad()
def features(name: str, weights: str | Path, image: Path) -> Tensor:
    """Five channels of the class token, then five of the first patch: ``[2, 5]``.

    Args:
        name: Row of the model table, of a ViT with a class token.
        weights: As `pretrained` of `create`.
        image: File; resized to 224x224 pixels, bilinear and antialiased, as for the published figures.
    """
    model = create(name, pretrained=weights, output_cls_token=True)
    x = torch.from_numpy(np.array(Image.open(image).convert("RGB"))).permute(2, 0, 1)[None] / 255  # [1, 3, H, W]
    x = F.interpolate(x, (224, 224), mode="bilinear", antialias=True)  # [1, 3, 224, 224]
    mean, std = (torch.tensor(values)[:, None, None] for values in (model.cfg.mean, model.cfg.std))  # [3, 1, 1] each
    patches, token = model((x - mean) / std)[-1]  # [1, C, h, w], [1, C]
    return torch.stack((token[0, :5], patches[0, :5, 0, 0]))  # [2, 5]


def check(name: str, weights: str | Path, image: Path) -> str:
    """Compare the features of a file with the published ones.

    Args:
        name: Row of the model table.
        weights: As `pretrained` of `create`.
        image: `IMAGE` of COCO.

    Returns:
        A line of the result.

    Raises:
        ValueError: Nothing is published for these weights.
        CheckpointMismatchError: The features are others.
    """
    row = find_model(name)
    if row is None or row.name not in FINGERPRINTS:
        raise ValueError(f"--image: got {name}, expected weights with published features: {', '.join(FINGERPRINTS)}")
    error = (features(row.name, weights, image) - torch.tensor(FINGERPRINTS[row.name])).abs().max().item()
    if not error <= TOLERANCE:
        raise CheckpointMismatchError(
            f"the features of {weights} differ from the published ones of {row.name} by {error:.1e}, expected at most "
            f"{TOLERANCE}; check that it is this model's file, and that {image} is {IMAGE} of COCO val2017"
        )
    return f"verify {row.name}: differs from the published features by {error:.1e}"
