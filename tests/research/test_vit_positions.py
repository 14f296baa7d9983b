"""2-D positions and none in a plain ViT (ViT appendix D.4)."""

import pytest
import torch
import torch.nn.functional as F
from test_vit import NANO, randomise

from vitdense import PositionViT, ViT
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.research.vit_positions.model import AxialPosition


@pytest.mark.parametrize("size", [(4, 6), (5, 3)])
def test_2d_positions_are_the_definition(size):
    """Half of the channels from the column and half from the row, each embedding resized along its axis."""
    position = AxialPosition((4, 6), 10)
    x = torch.randn(2, *size, 10)
    got = position(x)
    for half, axis, n in ((slice(0, 5), 1, size[1]), (slice(5, 10), 0, size[0])):
        vectors = (position.columns if axis else position.rows).flatten(1, 2)  # [1, n, 5]
        curves = vectors.mT[..., None]  # [1, 5, n, 1]
        curves = F.interpolate(curves, size=(n, 1), mode="bicubic") if vectors.shape[1] != n else curves
        for i in range(size[0]):
            for j in range(size[1]):
                want = x[:, i, j, half] + curves[0, :, (i, j)[axis], 0]
                torch.testing.assert_close(got[:, i, j, half], want)


def make(position, image=64, **options):
    return PositionViT(NANO, position=position, pretrain_img_size=image, out_norm="none", **options)


@pytest.mark.parametrize(("position", "has"), [("2d", {"rows", "columns"}), ("none", set())])
def test_positions_of_appendix_d4(position, has):
    """Without positions a ViT sees a bag of patches: maps move with their patches."""
    torch.manual_seed(0)
    model = randomise(make(position, out_indices=(3,))).eval()
    assert {name for name, _ in model.absolute_pos_embed.named_parameters()} == has
    assert not hasattr(model.tokens, "cls_position")
    image = torch.randn(1, 3, 64, 64)
    moved = torch.cat([image[..., 32:], image[..., :32]], dim=-1)  # columns of patches in another order
    with torch.no_grad():
        (a,), (b,) = model(image), model(moved)
    b = torch.cat([b[..., 2:], b[..., :2]], dim=-1)
    assert torch.allclose(a, b, atol=1e-4) == (position == "none")


def test_2d_positions_are_resized_along_their_axes_and_others_are_refused():
    source, target = make("2d"), make("2d", (96, 80))
    report = load_pretrained(target, source.state_dict())
    assert report.resized == {
        "absolute_pos_embed.columns": ((1, 1, 4, 16), (1, 1, 5, 16)),
        "absolute_pos_embed.rows": ((1, 4, 1, 16), (1, 6, 1, 16)),
    }
    assert report.share == 1
    plain = ViT(NANO, pretrain_img_size=64, out_norm="none")
    for other, message in (
        (plain, r"missing keys \(2\): absolute_pos_embed\.table"),
        (make("none"), "unexpected keys"),
    ):
        with pytest.raises(CheckpointMismatchError, match=message):
            load_pretrained(other, source.state_dict())
