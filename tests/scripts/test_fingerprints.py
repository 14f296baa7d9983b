"""The published features of DINOv3: how they are read off a model. The released files are not at hand."""

import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms

import fingerprints
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.families import MODELS

pytestmark = pytest.mark.long
NAME = "dinov3_small.fb_lvd1689m"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fingerprints")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (120, 160, 3), generator=generator, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(folder / "image.png")
    theirs = timm.create_model("vit_small_patch16_dinov3", pretrained=False).eval()
    for parameter in theirs.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    torch.save(theirs.state_dict(), folder / "timm.pth")
    row = MODELS[NAME]
    preprocess = transforms.Compose(
        [transforms.ToTensor(), transforms.Resize((224, 224)), transforms.Normalize(row.mean, row.std)]
    )
    with torch.no_grad():
        tokens = theirs.forward_features(preprocess(Image.open(folder / "image.png"))[None])[0]  # [1 + 4 + 196, C]
    return folder / "image.png", folder / "timm.pth", torch.stack((tokens[0, :5], tokens[5, :5]))


def test_features_equal_timm_after_the_published_preprocessing(files):
    image, weights, expected = files
    torch.testing.assert_close(fingerprints.features(NAME, weights, image), expected, atol=1e-5, rtol=1e-5)


def test_check_compares_with_the_published_features(files, monkeypatch):
    image, weights, expected = files
    with pytest.raises(CheckpointMismatchError, match="differ from the published ones"):
        fingerprints.check(NAME, weights, image)
    monkeypatch.setitem(fingerprints.FINGERPRINTS, NAME, expected.tolist())
    assert fingerprints.check("dinov3_small", weights, image).startswith(f"verify {NAME}: differs from the published")
    with pytest.raises(ValueError, match="expected weights with published features"):
        fingerprints.check("dinov2_small", weights, image)


def test_every_name_is_of_the_table():
    assert fingerprints.FINGERPRINTS.keys() <= MODELS.keys()
    assert all(len(values) == 2 and {*map(len, values)} == {5} for values in fingerprints.FINGERPRINTS.values())
