"""Distillation against the authors' losses and the paper's formulas; which head learns from whom; teachers."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same_tensors, of_prefix
from mmengine.structures import BaseDataElement
from torch import nn

from vitdense import ViT
from vitdense.checkpoint.load import load_pretrained
from vitdense.research.pretraining.classifier import DISTILLATION, PREDICTIONS, Classifier
from vitdense.research.pretraining.teacher import Teacher

SIZES = {"embed_dims": 32, "depth": 2, "num_heads": 2}
BASES = {  # of the golden file: options of the model, and the targets
    "soft_target": ({}, "in.targets"),
    "label_smoothing": ({"label_smoothing": 0.1}, "in.labels"),
    "ce": ({"label_smoothing": 0.0}, "in.labels"),
    "bce": ({"base": "bce"}, "in.targets_unsmoothed"),
}


def vit(distilled=True, size=32, **options):
    arch = {**SIZES, "distilled": distilled}
    return ViT(arch, pretrain_img_size=size, out_indices=(1,), out_norm="final", output_cls_token=True,
               drop_path_rate=0.0, **options)  # fmt: skip


class Known(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images):
        self.images, self.was_training = images, self.training
        return self.logits


def samples(labels):
    return [BaseDataElement(gt_label=int(label)) for label in labels]


def model(logits=None, **options):
    options = {"num_classes": 5, **options}
    if logits is not None:
        options |= {"teacher": {"model": Known(logits)}, "distillation": options.get("distillation", "hard")}
    return Classifier(options.pop("backbone", None) or vit(), **options)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kind", ["none", "soft", "hard"])
def test_losses_and_gradients_equal_the_authors(golden_file, base, kind):
    _, golden = golden_file("deit_distillation_loss")
    options, targets = BASES[base]
    targets = golden[targets]
    for tau, alpha in ((1, 0.5), (3, 0.1)):
        ending = f"{base}.{kind}" + f".tau{tau}.alpha{alpha}" * (kind != "none")
        cls, dist = (golden[f"in.{name}"].clone().requires_grad_() for name in ("cls", "dist"))
        ours = model(golden["in.teacher"], num_classes=11, alpha=alpha, **options)
        loss = ours.base_loss(cls, targets)
        if kind != "none":
            distill = DISTILLATION["soft_mean" if kind == "soft" else kind](dist, golden["in.teacher"], tau)
            loss = (1 - alpha) * loss + alpha * distill
        loss.backward()
        assert loss.item() == pytest.approx(golden[f"loss.{ending}"].item(), rel=1e-6)
        torch.testing.assert_close(cls.grad, golden[f"grad_cls.{ending}"], rtol=1e-5, atol=1e-7)
        if kind != "none":
            torch.testing.assert_close(dist.grad, golden[f"grad_dist.{ending}"], rtol=1e-5, atol=1e-7)


def test_soft_distillation_of_the_paper_is_a_mean_over_only_the_batch():
    p, q = torch.randn(4, 7, dtype=torch.float64), torch.randn(4, 7, dtype=torch.float64)
    want = 0.0
    for teacher, student in zip((p / 3).softmax(1).tolist(), (q / 3).softmax(1).tolist()):
        want += sum(a * math.log(a / b) for a, b in zip(teacher, student)) / 4
    assert DISTILLATION["soft"](q, p, 3.0).item() == pytest.approx(9 * want, rel=1e-12)
    assert DISTILLATION["soft_mean"](q, p, 3.0).item() == pytest.approx(9 * want / 7, rel=1e-12)


@pytest.mark.parametrize("kind", DISTILLATION)
def test_each_head_learns_only_from_its_own_teacher(kind):
    ours = model(torch.randn(3, 5), distillation=kind, alpha=0.3, tau=3.0)
    losses = ours(torch.randn(3, 3, 32, 32), samples([0, 1, 4]), mode="loss")
    heads = [*ours.head.parameters()], [*ours.head_dist.parameters()]
    of_label, of_teacher = (
        torch.autograd.grad(losses[name], [*heads[0], *heads[1]], retain_graph=True, allow_unused=True)
        for name in ("loss_class", "loss_distillation")
    )
    assert [grad is not None for grad in of_label] == [True, True, False, False]
    assert [grad is not None for grad in of_teacher] == [False, False, True, True]


def test_student_without_distillation_token_learns_both_with_its_class_token():
    ours = model(torch.randn(3, 5), backbone=vit(distilled=False))
    losses = ours(torch.randn(3, 3, 32, 32), samples([0, 1, 4]), mode="loss")
    for name in ("loss_class", "loss_distillation"):
        assert torch.autograd.grad(losses[name], ours.head.weight, retain_graph=True)[0].any()


def test_distillation_without_labels_trains_every_trainable_parameter():
    ours = model(torch.randn(3, 5), alpha=1.0)
    losses = ours(torch.randn(3, 3, 32, 32), mode="loss")
    assert list(losses) == ["loss_distillation"]
    losses["loss_distillation"].backward()
    untrained = {name for name, p in ours.named_parameters() if p.grad is None}
    assert untrained == {"head.weight", "head.bias"} == {n for n, p in ours.named_parameters() if not p.requires_grad}


def test_label_smoothing_is_for_labels_not_for_the_teacher():
    logits = torch.randn(3, 5)
    ours = model(logits, label_smoothing=0.4)
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        cls, dist = ours.logits(x)
        losses = ours(x, samples([0, 1, 4]), mode="loss")
    want = F.cross_entropy(cls, torch.tensor([0, 1, 4]), label_smoothing=0.4)
    torch.testing.assert_close(losses["loss_class"], 0.5 * want)
    torch.testing.assert_close(losses["loss_distillation"], 0.5 * F.cross_entropy(dist, logits.argmax(1)))


@pytest.mark.parametrize(("base", "smoothing"), [("ce", 0.1), ("bce", 0.0)])
def test_targets_of_mixup_are_smoothed_only_for_cross_entropy(base, smoothing):
    assert model(base=base, mixup={"mixup_alpha": 0.8}).mixup.label_smoothing == smoothing


def test_without_teacher_the_loss_uses_only_labels():
    ours, x = model(base="bce"), torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        (cls, dist), losses = ours.logits(x), ours(x, samples([0, 1, 4]), mode="loss")
        torch.testing.assert_close(ours(x), (cls + dist) / 2)
    want = F.binary_cross_entropy_with_logits(cls, F.one_hot(torch.tensor([0, 1, 4]), 5).float())
    assert losses == {"loss_class": pytest.approx(want.item())}


def test_heads_start_as_linear_layers_of_transformers():
    for head in model(num_classes=50).heads:
        assert head.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not head.bias.any()


def test_predictions_of_the_paper_of_the_code_and_of_each_head():
    cls, dist = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 9.0, 0.0]])
    mean = PREDICTIONS["softmax"]([cls, dist])
    torch.testing.assert_close(mean, (cls.softmax(1) + dist.softmax(1)) / 2)
    torch.testing.assert_close(PREDICTIONS["logits"]([cls, dist]), torch.tensor([[1.0, 4.5, 0.0]]).softmax(1))
    assert not torch.allclose(mean, PREDICTIONS["logits"]([cls, dist]))
    torch.testing.assert_close(PREDICTIONS["class"]([cls, dist]), cls.softmax(1))
    torch.testing.assert_close(PREDICTIONS["distillation"]([cls, dist]), dist.softmax(1))
    ours = model(prediction="distillation").eval()
    x, labels = torch.randn(2, 3, 32, 32), samples([0, 1])
    with torch.no_grad():
        predicted, dist = ours(x, labels, mode="predict"), ours.logits(x)[1]
    assert [sample.pred_label for sample in predicted] == dist.argmax(1).tolist()
    torch.testing.assert_close(predicted[1].pred_scores, dist[1].softmax(0))


def test_teacher_sees_the_same_images_by_its_own_size_and_statistics():
    known = Known(torch.randn(2, 5))
    teacher = {"model": known, "image_size": 48, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.5, 1.0)}
    ours = Classifier(vit(), 5, "hard", teacher=teacher).train()
    raw = torch.rand(2, 3, 32, 32)
    ours((raw - ours.mean) / ours.std, samples([0, 1]), mode="loss")
    assert not known.was_training
    resized = F.interpolate(raw, (48, 48), mode="bicubic", antialias=True)
    want = (resized - 0.5) / torch.tensor([0.25, 0.5, 1.0])[:, None, None]
    torch.testing.assert_close(known.images, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_teacher_sees_mixed_images(alpha):
    ours = model(torch.randn(4, 5), alpha=alpha, mixup={"mixup_alpha": 0.8, "cutmix_alpha": 1.0})
    seen = []
    ours.backbone.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.randn(4, 3, 32, 32)
    before = x.clone()
    losses = ours(x, samples([0, 1, 2, 3]) if alpha < 1 else None, mode="loss")
    assert torch.equal(x, before)  # timm mixes in place
    assert not torch.equal(seen[0], x)
    torch.testing.assert_close(ours.teacher.model.images, seen[0], atol=1e-5, rtol=1e-5)  # the same statistics
    assert all(loss.isfinite() for loss in losses.values())


def test_teacher_is_in_no_checkpoint_and_follows_the_images():
    ours = model(torch.randn(2, 5))
    assert not any("teacher" in key or "logits" in key for key in ours.state_dict())
    assert not any(p is ours.teacher.model.logits for p in ours.parameters())
    assert not ours.teacher.model.logits.requires_grad
    ours.double()(torch.randn(2, 3, 32, 32).double(), samples([0, 1]), mode="loss")
    assert ours.teacher.model.logits.dtype == ours.teacher.mean.dtype == torch.float64


def test_deep_copies_share_the_teacher():
    """It never changes. Copies on another device or in another dtype leave it usable by the first."""
    ours = model(torch.randn(2, 5))
    average = copy.deepcopy(ours)
    assert average.teacher is ours.teacher
    assert average.head.weight is not ours.head.weight
    average.double()
    assert ours.teacher.mean.dtype == torch.float32
    inputs = torch.randn(2, 3, 32, 32), samples([0, 1])
    for copied, dtype in ((ours, torch.float32), (average, torch.float64), (ours, torch.float32)):
        losses = copied(inputs[0].to(dtype), inputs[1], mode="loss")
        assert losses["loss_distillation"].dtype == dtype
    assert not any(p.requires_grad for p in ours.teacher.parameters())


def test_teacher_loads_its_weights_with_the_model(monkeypatch):
    teacher, calls = Classifier(vit(), 5), []
    monkeypatch.setattr(teacher, "init_weights", lambda: calls.append(1))
    Classifier(vit(), 5, "hard", teacher={"model": teacher}).init_weights()
    assert calls == [1]


def test_teacher_of_timm_has_its_own_statistics(monkeypatch):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    weights, read = Teacher(name).model.state_dict(), []
    monkeypatch.setattr("vitdense.checkpoint.read.fetch", lambda address, *_: read.append(address) or weights)
    teacher = Teacher(name, image_size=224)
    assert teacher.mean.flatten().tolist() == [0.5] * 3
    assert not read
    Classifier(vit(), 1000, "hard", teacher=teacher).init_weights()
    assert read == [f"hf://timm/{name}/model.safetensors"]  # downloaded and kept as all weights are
    assert_same_tensors(teacher.model.state_dict(), weights)
    assert teacher(torch.rand(1, 3, 32, 32)).shape == (1, 1000)


def test_checkpoint_initialises_detectors_and_itself(tmp_path):
    ours = model()
    torch.save({"state_dict": ours.state_dict()}, tmp_path / "student.pth")
    dense = ViT({**SIZES, "distilled": True}, pretrain_img_size=64)
    report = load_pretrained(dense, tmp_path / "student.pth")
    assert list(report.resized) == ["absolute_pos_embed.table"]
    assert torch.equal(dense.blocks[1].attn.qkv.weight, ours.backbone.blocks[1].attn.qkv.weight)
    assert torch.equal(dense.tokens.dist_token, ours.backbone.tokens.dist_token)
    again = model()
    again.load_state_dict(torch.load(tmp_path / "student.pth")["state_dict"])
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(again.eval()(x), ours.eval()(x))


def test_heads_of_published_files_are_loaded_with_keep_classifier(golden_file, tmp_path):
    _, golden = golden_file("deit_distilled")
    state = of_prefix(golden, "sd.")
    torch.save({"model": state}, tmp_path / "deit.pth")
    init_cfg = {"type": "Pretrained", "checkpoint": str(tmp_path / "deit.pth"), "keep_classifier": True}
    arch = {"embed_dims": 48, "depth": 4, "num_heads": 3, "distilled": True}

    def build(num_classes):
        backbone = ViT(arch, out_indices=(3,), out_norm="final", output_cls_token=True, init_cfg=init_cfg)
        return Classifier(backbone, num_classes)

    ours = build(10).eval()
    ours.init_weights()
    with torch.no_grad():
        cls, dist = ours.logits(golden["in.0"])
    for logits, token, head in ((cls, "out.0.0", "head"), (dist, "out.0.1", "head_dist")):
        want = F.linear(golden[token], state[f"{head}.weight"], state[f"{head}.bias"])
        torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-4)
    with pytest.raises(RuntimeError, match="size mismatch"):
        build(7).init_weights()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(distillation="medium"), "distillation"),
        (dict(distillation="hard"), "teacher"),
        (dict(teacher={"model": Known(torch.zeros(1, 5))}), "distillation"),
        (dict(base="mse"), "base"),
        (dict(prediction="best"), "prediction"),
        (dict(backbone=ViT(SIZES)), "output_cls_token"),
        (dict(backbone=ViT(SIZES, output_cls_token=True)), "out_norm"),
    ],
)
def test_wrong_options_are_named(change, named):
    with pytest.raises(ValueError, match=named):
        Classifier(**{"backbone": vit(), **change})


def test_teacher_of_other_classes_is_refused():
    with pytest.raises(ValueError, match="num_classes"):
        model(torch.randn(2, 6))(torch.randn(2, 3, 32, 32), samples([0, 1]), mode="loss")


def test_attention_only_fine_tuning_leaves_both_heads_trainable():
    ours = model(torch.randn(2, 5), backbone=vit(finetune="attention"))
    trained = {name for name, p in ours.named_parameters() if p.requires_grad}
    assert {"head.weight", "head_dist.weight"} <= trained
    assert not any(".mlp." in name for name in trained)
