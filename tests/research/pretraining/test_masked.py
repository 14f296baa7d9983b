"""Masked-image pretraining against the authors' MAE and SimMIM, and the argument for stems that keep patches apart."""

import pytest
import torch
import torch.nn.functional as F
from conftest import of_prefix, relative_error
from mmengine.structures import BaseDataElement
from torch import nn

from vitdense import Mixer, PositionViT, StemViT, Swin, SwinV2, ViT
from vitdense.checkpoint.load import load_pretrained
from vitdense.research.pretraining.data import DrawMask
from vitdense.research.pretraining.masked import MaskedImageModel, sine_cosine
from vitdense.research.pretraining.targets import MeanColour, PixelTarget, block_mask, find_words, patches, random_mask
from vitdense.research.pretraining.teacher import Teacher

SIZES = {"embed_dims": 32, "depth": 2, "num_heads": 2}
PIXELS = {"type": "pixels"}
DECODER = {"embed_dims": 16, "depth": 1, "num_heads": 2}


def vit(stem="patch", **options):
    options = {"pretrain_img_size": 64, "out_indices": (1,), "out_norm": "final", "drop_path_rate": 0.0, **options}
    return StemViT(SIZES, stem=stem, **options)


def swin(kind=Swin, **options):
    arch = {"embed_dims": 8, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 2, 4]}
    return kind(arch, window_size=2, **{"out_indices": (3,), "drop_path_rate": 0.0, **options})


def samples(model, images, ratio=0.6, cell=None, kind="random"):
    draw = DrawMask(ratio, cell or model.side, kind)
    return [draw({"inputs": image, "data_samples": BaseDataElement()})["data_samples"] for image in images]


def draw_mask(model, images, **options):
    return model.masks_of(samples(model, images, **options), images)


def masks(make, count, *args):
    return torch.stack([make(*args) for _ in range(count)])


def test_mae_equals_the_authors_latents_predictions_and_losses(golden_file):
    _, golden = golden_file("mae_tiny")
    state = of_prefix(golden, "sd.")
    for norm, name in ((None, "loss.raw"), ("patch", "loss.norm_pix")):
        model = MaskedImageModel(vit(), {**PIXELS, "norm": norm}, decoder=DECODER).eval()
        table = model.backbone.absolute_pos_embed.table.clone()
        assert load_pretrained(model.backbone, {"model": state}).share == 1
        # Fixed positions are in the file: they are those that the model made itself.
        torch.testing.assert_close(table, model.backbone.absolute_pos_embed.table)
        torch.testing.assert_close(
            sine_cosine((4, 4), 16).flatten(1, 2), state["decoder_pos_embed"][:, 1:], atol=1e-6, rtol=0
        )
        decoder = of_prefix(state, "decoder_")
        del decoder["pos_embed"]
        model.decoder.load_state_dict(decoder | {"mask_token": state["mask_token"][0, 0]})
        mask = golden["mask"].bool().unflatten(1, (4, 4))
        latents = []
        model.backbone.norm.register_forward_hook(lambda module, args, out, latents=latents: latents.append(out))
        with torch.no_grad():
            prediction = model.predict_patches(golden["in.image"], mask)
            loss = model.loss_of(prediction, mask, golden["in.image"])
        # The authors keep patches in the order of their noise, we in the order of the image.
        kept = golden["ids_restore"].argsort(1)[:, : latents[0].shape[1] - 1]
        ours = latents[0][:, 1:].gather(1, kept.argsort(1).argsort(1)[..., None].expand(-1, -1, 32))
        assert relative_error(torch.cat([latents[0][:, :1], ours], 1), golden["latent"]) < 1e-5
        assert relative_error(prediction.flatten(1, 2), golden["pred"]) < 1e-5
        assert loss.item() == pytest.approx(golden[name].item(), rel=1e-5)
    assert torch.equal(patches(golden["in.image"], 16).flatten(1, 2), golden["target_patches"])


@pytest.mark.parametrize(("norm", "loss"), [(None, "loss.raw"), (47, "loss.norm_target")])
def test_simmim_equals_the_authors_latents_reconstruction_and_losses(golden_file, norm, loss):
    _, golden = golden_file("simmim_swin")
    state = of_prefix(golden, "sd.")
    model = MaskedImageModel(swin(), {**PIXELS, "loss": "l1", "norm": norm}).eval()
    report = load_pretrained(model.backbone, {"model": state})  # whose backbone has a prefix and a mask token
    assert report.share == 1
    model.norm.load_state_dict({key: state[f"encoder.norm.{key}"] for key in ("weight", "bias")})
    with torch.no_grad():
        model.mask_token.copy_(state["encoder.mask_token"][0, 0])
        # Theirs are the channels of a pixel shuffle: colour, row, column.
        order = torch.arange(3072).view(3, 32, 32).permute(1, 2, 0).flatten()
        model.decoder.weight.copy_(state["decoder.0.weight"][order, :, 0, 0])
        model.decoder.bias.copy_(state["decoder.0.bias"][order])
        mask = golden["in.mask"][:, ::8, ::8].bool()
        latent = []
        model.norm.register_forward_hook(lambda module, args, out: latent.append(out))
        prediction = model.predict_patches(golden["in.image"], mask)
        got = model.loss_of(prediction, mask, golden["in.image"])
    assert relative_error(latent[0].permute(0, 3, 1, 2), golden["latent"]) < 1e-5
    assert relative_error(prediction, patches(golden["reconstruction"], 32)) < 1e-5
    assert got.item() == pytest.approx(golden[loss].item(), rel=1e-5)
    if norm:
        assert relative_error(model.target(model, golden["in.image"]), patches(golden["target_norm"], 32)) < 1e-5


def gradient_of_masked_pixels(model, side=64):
    """The largest gradient of any prediction with respect to a pixel of a masked patch, and to one of the others."""
    images = torch.randn(2, 3, side, side, requires_grad=True)
    mask = draw_mask(model, images)
    prediction = model.predict_patches(images, mask)
    (gradient,) = torch.autograd.grad((prediction * torch.randn_like(prediction)).sum(), images)
    by_patch = patches(gradient.abs(), model.side).amax(-1)
    return by_patch[mask].max().item(), by_patch[~mask].max().item()


@pytest.mark.parametrize(
    ("stem", "mode", "leaks"),
    [
        ("patch", "train", False),
        ("hmlp_ln", "train", False),
        ("hmlp", "eval", False),
        ("hmlp", "train", True),  # statistics of the batch see masked patches
        ("linear_bn_gelu", "eval", False),
        ("conv", "eval", True),  # a window of 3 pixels every 2
        ("conv_ln", "train", True),
    ],
)
@pytest.mark.parametrize("decoder", [None, DECODER])
def test_masked_pixels_reach_predictions_only_through_stems_that_mix_patches(stem, mode, leaks, decoder):
    """ "Three things" section 5: masking after a stem that keeps patches apart is masking before it."""
    model = MaskedImageModel(vit(stem), PIXELS, decoder=decoder).train(mode == "train")
    masked, others = gradient_of_masked_pixels(model)
    assert (masked > 0) == leaks
    assert others > 0


def test_masked_pixels_do_not_reach_the_predictions_of_swin():
    masked, others = gradient_of_masked_pixels(MaskedImageModel(swin(), PIXELS), side=96)
    assert masked == 0 < others


def test_random_mask_has_the_same_share_in_every_image():
    mask = masks(random_mask, 5, (14, 14), 0.75)
    assert mask.flatten(1).sum(1).tolist() == [147] * 5  # MAE keeps int(196 * 0.25)
    assert len({tuple(row.tolist()) for row in mask.flatten(1)}) == 5
    assert random_mask((6, 6), 0.6).sum() == 22  # SimMIM masks ceil(21.6)
    assert random_mask((10, 10), 0.55).sum() == 55  # the product is above 55 by its rounding


def test_block_mask_is_made_of_rectangles_and_never_exceeds_its_share():
    mask = masks(block_mask, 50, (14, 14), 75 / 196)
    shares = mask.flatten(1).sum(1)
    assert shares.max() <= 75
    assert shares.min() >= 40  # may end below 75, as in BEiT's code
    # A random mask of this share has neighbours of the same kind half of the time.
    same = (mask[:, :, 1:] == mask[:, :, :-1]).float().mean()
    assert same > 0.8


def test_rectangles_of_a_block_mask_have_16_cells_and_aspects_up_to_3():
    mask = masks(block_mask, 60, (14, 14), 16 / 196).float()
    sides = [(4, 4), (3, 5), (5, 3), (2, 6), (6, 2), (2, 7), (7, 2)]  # the first rectangle, rounded
    has = {side: F.avg_pool2d(mask, side, stride=1).flatten(1).amax(1) == 1 for side in sides}
    assert torch.stack(list(has.values())).any(0).all()
    assert has[2, 7].any()
    assert has[7, 2].any()


@pytest.mark.parametrize("grid", [(1, 1), (1, 20), (20, 1), (2, 3), (4, 4)])
def test_block_mask_of_a_small_or_narrow_map_is_not_empty(grid):
    """The loss of an empty mask is no number."""
    counts = masks(block_mask, 50, grid, 0.4).flatten(1).sum(1)
    assert counts.min() >= 1
    assert counts.max() <= max(1, round(0.4 * grid[0] * grid[1]))


@pytest.mark.parametrize("make", [vit, swin, lambda: swin(SwinV2)], ids=["vit", "swin", "swin_v2"])
def test_any_size_and_padding_is_never_a_target(make):
    model = MaskedImageModel(make(), PIXELS).train()
    images = torch.randn(2, 3, 101, 77)
    prediction, mask = model(images, samples(model, images))
    grid = (101 // model.side, 77 // model.side)
    assert mask.shape == (2, *grid)
    assert prediction.shape == (2, *grid, 3 * model.side**2)
    loss = model(images, samples(model, images), mode="loss")["loss"]
    loss.backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []  # DDP needs no find_unused_parameters


def test_visible_patches_are_encoded_in_the_order_of_the_image():
    torch.manual_seed(0)
    model = MaskedImageModel(vit(), PIXELS, decoder=DECODER).eval()
    orders = []
    model.decoder.register_forward_pre_hook(lambda _, args: orders.append(args[2]))
    mask = masks(random_mask, 2, (14, 14), 0.75)
    with torch.no_grad():
        model.predict_patches(torch.randn(2, 3, 224, 224), mask)
    for order, masked in zip(orders[0], mask.flatten(1)):
        assert order.tolist() == [*(~masked).nonzero().flatten().tolist(), *masked.nonzero().flatten().tolist()]


def test_decoders_start_as_transformers_do():
    for decoder in (None, {"embed_dims": 64, "depth": 1, "num_heads": 2}):
        linear = [m for m in MaskedImageModel(vit(), PIXELS, decoder=decoder).decoder.modules() if type(m) is nn.Linear]
        assert all(m.weight.std().item() == pytest.approx(0.02, rel=0.1) and not m.bias.any() for m in linear)


def test_images_masks_and_modes_that_do_not_fit_are_refused():
    model, images = MaskedImageModel(vit(), PIXELS), torch.zeros(2, 3, 96, 96)
    fitting = samples(model, images)
    with pytest.raises(ValueError, match="image"):
        samples(model, torch.zeros(1, 3, 31, 64), cell=32)
    with pytest.raises(ValueError, match="mode"):
        model(images, fitting, mode="predict")
    small, large = samples(model, images, cell=24), samples(model, images, cell=32)
    for wrong, named in (
        (None, "DrawMask"),
        ([BaseDataElement(), BaseDataElement()], "DrawMask"),
        (small, "cell"),
        ([fitting[0], large[1]], "cell"),
    ):
        with pytest.raises(ValueError, match=named):
            model(images, wrong, mode="loss")
    model = MaskedImageModel(vit(), PIXELS, decoder=DECODER)
    with pytest.raises(ValueError, match="decoder"):
        model(images, [fitting[0], samples(model, images, ratio=0.2)[1]], mode="loss")


def test_masks_of_smaller_images_of_a_batch_do_not_reach_its_padding():
    model = MaskedImageModel(vit(), PIXELS)
    images = [torch.zeros(3, 64, 96), torch.zeros(3, 96, 50)]
    mask = model.masks_of(samples(model, images, ratio=0.99), torch.zeros(2, 3, 96, 96))
    assert mask[0, :4].all()
    assert mask[1, :, :3].all()
    assert mask.sum() == 4 * 6 + 6 * 3


def test_cells_of_several_patches_are_masked_together():
    model = MaskedImageModel(vit(), PIXELS)
    mask = draw_mask(model, torch.zeros(3, 3, 100, 128), cell=32)
    assert mask.shape == (3, 6, 8)
    cells = mask.view(3, 3, 2, 4, 2).permute(0, 1, 3, 2, 4).flatten(3)
    assert torch.equal(cells.all(-1), cells.any(-1))
    assert cells.all(-1).sum().item() == 3 * 8  # ceil(0.6 * 12)


def test_loss_is_the_mean_over_only_masked_patches():
    model = MaskedImageModel(vit(), {**PIXELS, "loss": "l1", "norm": None})
    images, prediction = torch.randn(2, 3, 64, 64), torch.randn(2, 4, 4, 768)
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = mask[1, 3, 0] = mask[1, 3, 3] = True
    want = []
    for b, row, column in mask.nonzero().tolist():
        patch = images[b, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16].permute(1, 2, 0).flatten()
        want.append((prediction[b, row, column] - patch).abs().mean())
    torch.testing.assert_close(model.loss_of(prediction, mask, images), torch.stack(want).mean())


def test_mean_colour_is_three_bits_of_each_channel():
    model = MaskedImageModel(vit(), {"type": "mean_colour"})
    colours = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.13, 0.49, 0.51], [0.874, 0.876, 0.2]])
    images = colours.view(2, 2, 3).permute(2, 0, 1).repeat_interleave(16, 1).repeat_interleave(16, 2)[None]
    classes = MeanColour(16)(model, (images - model.mean) / model.std)
    want = [0, 511, 1 * 64 + 3 * 8 + 4, 6 * 64 + 7 * 8 + 1]
    assert classes.flatten().tolist() == want
    assert model.decoder.out_features == 512
    images = torch.randn(1, 3, 64, 64)
    model(images, samples(model, images), mode="loss")["loss"].backward()


def test_words_are_the_nearest_centres_of_the_teachers_features(tmp_path):
    teacher = Teacher(vit(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    images = torch.rand(4, 3, 64, 96)
    words = find_words(teacher, images.split(2), (4, 6), words=5)
    torch.save(words, tmp_path / "words.pth")
    target = {"type": "words", "centres": str(tmp_path / "words.pth")}
    model = MaskedImageModel(vit(), target, teacher=teacher)
    got = model.target(model, (images - model.mean) / model.std)
    padded = F.pad(images, (0, 7, 0, 15), value=0.3)  # to no whole patch
    assert torch.equal(got, model.target(model, (padded - model.mean) / model.std))
    with torch.no_grad():
        features = teacher.model((images - 0.5) / 0.5)[-1].permute(0, 2, 3, 1)
    distances = (features[..., None, :] - words).square().sum(-1)
    assert torch.equal(got, distances.argmin(-1))
    assert got.unique().tolist() == [0, 1, 2, 3, 4]
    centres = torch.stack([features[got == n].mean(0) for n in range(5)])
    torch.testing.assert_close(centres, words, atol=1e-4, rtol=1e-4)  # k-means has converged
    assert not any("teacher" in key for key in model.state_dict())


@pytest.mark.parametrize(
    ("make", "decoder", "dense"),
    [
        (lambda: vit("hmlp_ln"), None, lambda **options: StemViT(SIZES, stem="hmlp_ln", **options)),
        (lambda: vit("hmlp_ln"), DECODER, lambda **options: StemViT(SIZES, stem="hmlp_ln", **options)),
        (swin, None, lambda **options: swin(out_indices=(0, 1, 2, 3), **options)),
    ],
)
def test_checkpoint_initialises_a_backbone_of_a_segmentor(tmp_path, make, decoder, dense):
    model = MaskedImageModel(make(), PIXELS, decoder=decoder)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "masked.pth")
    backbone = dense(pretrain_img_size=96, init_cfg=str(tmp_path / "masked.pth"))
    backbone.init_weights()
    report, ours, theirs = backbone.load_report, backbone.state_dict(), model.backbone.state_dict()
    assert list(report.resized) == ["absolute_pos_embed.table"] * ("absolute_pos_embed.table" in ours)
    assert all(key.startswith("norm") for key in report.kept_at_init)
    assert all(torch.equal(ours[key], theirs[key]) for key in report.loaded if key not in report.resized)


def test_positions_are_fixed_when_patches_are_dropped_and_train_in_a_detector(tmp_path):
    model = MaskedImageModel(vit(), PIXELS, decoder=DECODER)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"backbone.absolute_pos_embed.table", "backbone.tokens.cls_position"}
    assert not model.backbone.tokens.cls_position.any()
    torch.save(model.state_dict(), tmp_path / "mae.pth")
    dense = ViT(SIZES, pretrain_img_size=64, init_cfg=str(tmp_path / "mae.pth"))
    dense.init_weights()
    assert dense.absolute_pos_embed.table.requires_grad


def test_window_statistics_ignore_what_is_outside_of_the_image():
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    model = MaskedImageModel(vit(), {**PIXELS, "norm": 5})
    got = PixelTarget(16, norm=5)(model, images)
    for y, x in ((0, 0), (31, 7), (15, 16)):
        window = images[0, :, max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3].flatten(1)
        want = (images[0, :, y, x] - window.mean(1)) / (window.var(1) + 1e-6).sqrt()
        patch = got[0, y // 16, x // 16].view(16, 16, 3)
        torch.testing.assert_close(patch[y % 16, x % 16], want)
    # In float32 the variance of a bright, nearly constant image comes out below 0 in places.
    assert PixelTarget(16, norm=5)(model, 100 + 1e-3 * torch.randn(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(target={"type": "tokens"}), "target"),
        (dict(target={"type": "pixels", "norm": 4}), "norm"),
        (dict(target={"type": "pixels", "norm": 1}), "norm"),
        (dict(target={"type": "pixels", "loss": "huber"}), "loss"),
        (dict(target={"type": "words", "centres": torch.zeros(2, 32)}), "teacher"),
        (dict(backbone=Mixer({"embed_dims": 16, "depth": 2}, pretrain_img_size=64, out_indices=(1,))), "backbone"),
        (dict(backbone=vit(out_indices=(0, 1))), "out_indices"),
        (dict(backbone=vit(out_norm="each")), "out_norm"),
        (dict(backbone=vit(output_cls_token=True)), "output_cls_token"),
        (dict(backbone=vit(window_size=2), decoder={}), "decoder"),
        (dict(backbone=PositionViT(SIZES, out_indices=(1,), out_norm="final"), decoder={}), "decoder"),
        (dict(backbone=swin(), decoder={}), "decoder"),
    ],
)
def test_wrong_options_are_named(change, named):
    with pytest.raises(ValueError, match=named):
        MaskedImageModel(**{"backbone": vit(), "target": PIXELS, **change})


@pytest.mark.parametrize("change", [{"kind": "stripes"}, {"ratio": 1.0}, {"cell": 0}])
def test_wrong_options_of_a_mask_are_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        DrawMask(**{"ratio": 0.5, "cell": 16, **change})


@pytest.mark.long
def test_pretraining_learns_to_predict():
    """Better than the mean of the visible patches, on images of two constant halves."""
    torch.manual_seed(0)
    model = MaskedImageModel(vit(), {**PIXELS, "norm": None})
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    images = torch.randn(16, 3, 1, 2).repeat_interleave(64, 2).repeat_interleave(32, 3)
    for _ in range(150):
        optimizer.zero_grad()
        model(images, samples(model, images, ratio=0.5), mode="loss")["loss"].backward()
        optimizer.step()
    prediction, mask = model(images, samples(model, images, ratio=0.5))
    visible = nn.functional.one_hot((~mask).long(), 2)[..., 1:].float()
    target = patches(images, 16)
    mean = (target * visible).sum((1, 2), keepdim=True) / visible.sum((1, 2), keepdim=True)
    trivial = F.mse_loss(mean.expand_as(target)[mask], target[mask])
    assert F.mse_loss(prediction[mask], target[mask]) < 0.5 * trivial
