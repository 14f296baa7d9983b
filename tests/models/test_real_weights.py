"""A published classifier, loaded and run as users would, classifies. Skipped without the weights and the photos."""

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.transforms import functional as T

from vitdense import ViT


@pytest.fixture(scope="module")
def deit_tiny(shared_data):
    file = shared_data / "weights" / "deit_tiny_patch16_224.safetensors"
    model = ViT(
        "deit_tiny",
        out_indices=(11,),
        out_norm="final",
        output_cls_token=True,
        init_cfg={"type": "Pretrained", "checkpoint": str(file), "keep_classifier": True},
    )
    model.init_weights()
    return model.eval()


def photos(folder, size):
    """ImageNet's protocol: the short side to size / 0.875, the centre of it; and the class of every photo."""
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            image = T.resize(image.convert("RGB"), int(size / 0.875), T.InterpolationMode.BICUBIC)
        x = T.to_tensor(T.center_crop(image, size))
        yield T.normalize(x, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), int(path.name.split("_")[0])


@torch.no_grad()
def top_1(model, folder, size):
    head, right = model.load_report.classifier, 0
    xs, labels = zip(*photos(folder, size))
    for batch, classes in zip(torch.stack(xs).split(25), torch.tensor(labels).split(25)):
        ((_, token),) = model(batch)  # [25, C]
        logits = F.linear(token, head["head.weight"], head["head.bias"])  # [25, 1000]
        right += (logits.argmax(1) == classes).sum().item()
    assert len(labels) == 250
    return 100 * right / len(labels)


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "low", "high"),
    [
        (224, 83.2, 84.0),
        pytest.param(320, 82.4, 100, marks=pytest.mark.slow),
        pytest.param(384, 78.8, 100, marks=pytest.mark.slow),
    ],
)
def test_top_1_of_deit_tiny(deit_tiny, shared_data, size, low, high):
    """At 224 pixels as trained; at others with position embeddings resized and nothing trained (DeiT section 6)."""
    found = top_1(deit_tiny, shared_data / "imagenet", size)
    print(f"\nDeiT-Ti at {size} pixels: top-1 {found:.1f} % of 250 photos")
    assert low <= found <= high
