"""LW-DETR: RF-DETR's head on another trunk and neck, against golden outputs of transformers on drawn weights."""

import re

import pytest
import torch
from conftest import relative_error
from mmengine.optim import build_optim_wrapper
from rfdetr_drawn import GOLDEN, normal, targets, weights
from safetensors.torch import load_file
from test_rfdetr import CLASSES, load, samples, shapes_of

from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.whole_models import fit_whole
from vitdense.mm.config.base import build_model
from vitdense.mm.config.load import load_config

pytestmark = pytest.mark.long


def make(size="t", num_classes=91):
    return build_model(load_config(f"lwdetr_{size}_coco", {"model.bbox_head.num_classes": num_classes})).eval()


@pytest.mark.parametrize("at", ["640x640", "512x704"])
@torch.no_grad()
def test_outputs_and_what_is_selected(at):
    model, golden = load(make(), "lwdetr_t"), load_file(GOLDEN / "lwdetr_t.safetensors")
    maps = model.extract_feat(normal("image", 1, 3, *map(int, at.split("x"))))
    (found,) = model.bbox_head(maps)
    assert relative_error(found.logits[..., CLASSES], golden[f"{at}/logits"]) < 1e-5
    assert relative_error(found.boxes, golden[f"{at}/boxes"]) < 1e-5
    *_, first = model.bbox_head.train()(maps)
    assert relative_error(first.boxes[:, :100], golden[f"{at}/selected"]) < 1e-5


IN_FILES = {  # names that transformers writes, by those it has in memory
    r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key",
    r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output",
}
OF_AUTHORS = {  # of transformers' script that converts the authors' files
    r"model\.backbone\.backbone\.embeddings\.position_embeddings": "backbone.0.encoder.pos_embed",
    r"model\.backbone\.backbone\.embeddings\.projection": "backbone.0.encoder.patch_embed.proj",
    r"model\.backbone\.backbone\.encoder\.layer": "backbone.0.encoder.blocks",
    r"layernorm_before": "norm1",
    r"layernorm_after": "norm2",
    r"intermediate": "mlp",
    r"attention\.o_proj": "attn.proj",
    r"attention\.([qv])_proj\.bias": r"attn.\1_bias",
    r"model\.backbone\.projector\.scale_layers\.0\.projector_layer": "backbone.0.projector.stages.0.0",
    r"model\.backbone\.projector\.scale_layers\.0\.layer_norm": "backbone.0.projector.stages.0.1",
    r"bottlenecks": "m",
    r"(stages.*)conv([12])\.norm": r"\1cv\2.bn",
    r"(stages.*)conv([12])\.conv": r"\1cv\2.conv",
    r"model\.(reference_point|query)_": lambda m: {"reference_point": "refpoint_", "query": "query_"}[m[1]],
    r"model\.(decoder|enc_)": r"transformer.\1",
    r"decoder\.layernorm": "decoder.norm",
    r"self_attn\.o_proj": "self_attn.out_proj",
    r"self_attn_layer_norm": "norm1",
    r"cross_attn_layer_norm": "norm2",
    r"(transformer.*)layer_norm": r"\1norm3",
    r"(transformer.*)mlp\.fc": r"\1linear",
}
JOINED = {  # in the authors' files one tensor
    r"(.*attn)\.q_proj\.weight": (r"\1.in_proj_weight", "qkv"),
    r"(.*attn)\.q_proj\.bias": (r"\1.in_proj_bias", "qkv"),
    r"(.*blocks\.\d+)\.attention\.q_proj\.weight": (r"\1.attn.qkv.weight", "qkv"),
}


def renamed(state, names):
    found = {}
    for key, value in state.items():
        for pattern, name in names.items():
            key = re.sub(pattern, name, key)
        found[key] = value
    return found


def of_authors():
    state = renamed(weights(shapes_of("lwdetr_t")), OF_AUTHORS)
    for key in list(state):
        for pattern, (name, parts) in JOINED.items():
            if (found := re.fullmatch(pattern, key)) is not None:
                tensors = [state.pop(key.replace("q_proj", f"{part}_proj")) for part in parts]
                state[found.expand(name)] = torch.cat(tensors)
    return {"model": state, "args": None}


@pytest.mark.parametrize("kind", ["transformers", "authors"])
def test_files(kind):
    wanted, _ = fit_whole(make(), weights(shapes_of("lwdetr_t")))
    checkpoint, last = of_authors(), "backbone.0.encoder.blocks.5.gamma_2"
    if kind == "transformers":
        in_files = {rf"(encoder\.layer\.\d+\.){pattern}": rf"\1{name}" for pattern, name in IN_FILES.items()}
        checkpoint = {"model": renamed(weights(shapes_of("lwdetr_t")), in_files)}
        last = "model.backbone.backbone.encoder.layer.5.gamma_2"
    found, report = fit_whole(make(), checkpoint)
    assert not report.kept_at_init
    assert found.keys() == wanted.keys()
    assert all(value.equal(wanted[key]) for key, value in found.items())
    del checkpoint["model"][last]
    with pytest.raises(CheckpointMismatchError, match=r"backbone\.blocks\.5\.gamma_2"):
        fit_whole(make(), checkpoint)


def test_a_larger_model_is_refused():
    """The second map of the projector has its own names."""
    state = weights(shapes_of("lwdetr_t"))
    state["model.backbone.projector.scale_layers.1.layer_norm.bias"] = torch.zeros(256)
    with pytest.raises(CheckpointMismatchError, match=r"scale_layers\.1\.layer_norm\.bias"):
        fit_whole(make(), state)


def test_a_training_step_with_an_image_without_objects():
    model = make().train()
    truths = targets(128, (4, 0, 2))
    losses = model.loss(normal("images", 3, 3, 128, 128), samples(128, truths))
    assert len(losses) == 4 * 3  # of three decoder layers and the first stage
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    assert not [key for key, p in model.named_parameters() if p.grad is None]
    assert model.neck.first.norm.running_mean.any()


@pytest.mark.parametrize(
    ("size", "millions", "depth", "rate"), [("t", 12.1, 6, 0.8), ("s", 14.6, 10, 0.8), ("m", 28.2, 10, 0.7)]
)
def test_parameters_learning_rates_and_weight_decay_are_the_authors(size, millions, depth, rate):
    model, cfg = make(size), load_config(f"lwdetr_{size}_coco")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    found = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        lr, decay = 1e-4, 1e-4
        if name.startswith("backbone."):
            block = re.match(r"backbone\.blocks\.(\d+)", name)
            lr = 1.5e-4 * 0.7**2 * rate ** (depth - int(block[1]) if block else depth + 1)
            decay = 0 if re.search("gamma|pos_embed|bias|norm", name) else decay
        elif name.startswith("bbox_head.decoder."):
            lr = 0.7e-4
        assert found[id(parameter)] == (pytest.approx(lr), decay), name
