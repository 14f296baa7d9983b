"""DINOv2, DINOv3 and EVA-02: golden files of the authors' code (DINOv3: of transformers and timm), and refusals."""

import pytest
import torch
from conftest import add_row

from vitdense.backbones import ViT
from vitdense.weights.convert import convert
from vitdense.weights.load import load_pretrained

FFN = {"mlp": "mlp", "swiglufused": "swiglu"}


def dinov2(config, state):
    registers, dim = config["num_register_tokens"], config["embed_dim"]
    swiglu = config["ffn_layer"] != "mlp"
    return {
        "embed_dims": dim,
        "depth": config["depth"],
        "num_heads": config["num_heads"],
        "patch_size": config["patch_size"],
        "layer_scale": config["init_values"],
        "registers": registers,
        "position_rule": "antialias" if config["interpolate_antialias"] else "dinov2",
        "ffn": "swiglu" if swiglu else "mlp",
        "ffn_dims": (int(4 * dim * 2 / 3) + 7) // 8 * 8 if swiglu else 4 * dim,
    }, {"pretrain_img_size": config["img_size"]}


DINOV3 = {
    "layer_scale": 1.0,
    "registers": 4,
    "norm_eps": 1e-5,
    "token_position": False,
    "position": "none",
    "rope": "dinov3",
}


def dinov3_transformers(config, state):
    return {
        **DINOV3,
        "embed_dims": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "qkv_bias": "no_key",
        "ffn": "swiglu" if config["use_gated_mlp"] else "mlp",
        "ffn_dims": config["intermediate_size"],
    }, {}


def dinov3_timm(config, state):
    align = config.get("swiglu_align_to", 1)
    return {
        **DINOV3,
        "embed_dims": config["embed_dim"],
        "depth": config["depth"],
        "num_heads": config["num_heads"],
        "qkv_bias": "no_key" if config["qkv_bias"] else "none",
        "ffn": "swiglu" if config.get("swiglu_mlp") else "mlp",
        "ffn_dims": -(-int(config["embed_dim"] * config.get("mlp_ratio", 4)) // align) * align,
    }, {}


def eva02(config, state):
    net, windows = config["net"], config["net"]["window_block_indexes"]
    sizes = {"embed_dims": net["embed_dim"], "depth": net["depth"], "num_heads": net["num_heads"]}
    return {
        **sizes,
        "qkv_bias": "no_key",
        "rope": "eva02",
        "ffn": "swiglu_norm",
        "ffn_dims": int(net["embed_dim"] * 8 / 3),
    }, {
        "window_size": net["window_size"],
        "global_indices": [i for i in range(net["depth"]) if i not in windows],
        "pretrain_img_size": net["pretrain_img_size"],
    }


GOLDEN = {  # our model, and the naming scheme
    "dinov2_plain": (dinov2, "dinov2"),
    "dinov2_reg4": (dinov2, "dinov2"),
    "dinov2_swiglu": (dinov2, "dinov2"),
    "dinov3_transformers_mlp": (dinov3_transformers, "transformers"),
    "dinov3_transformers_swiglu": (dinov3_transformers, "transformers"),
    "dinov3_timm": (dinov3_timm, "timm"),
    "dinov3_timm_qkvb_swiglu": (dinov3_timm, "timm"),
    "eva02_det": (eva02, "detectron2"),
    "eva02_det_windowed": (eva02, "detectron2"),
}


def part(tensors, start):
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


@torch.no_grad()
def outputs_of(model, x, like):
    """Of our model, with the names of the authors' outputs in `like`; registers are inside, and not compared."""
    size = [-(-n // model.arch.patch_size) for n in x.shape[2:]]

    def tokens(outs):
        return [(out[0], out[1]) if isinstance(out, tuple) else (out, None) for out in outs]

    found = {}
    raw = model.out_norm
    for kind in ("shared", "none"):
        model.out_norm = kind
        if kind == "none" and model.norm is not None:
            norm, model.norm = model.norm, None
        for i, (out, cls) in enumerate(tokens(model(x))):
            name = "norm" if kind == "shared" else "raw"
            found |= {f"{name}/block{i}/map": out, f"{name}/block{i}/cls": cls}
            if kind == "none":
                found[f"block{i}"] = out.permute(0, 2, 3, 1)
                found[f"hidden_states/{i + 1}"] = found["last_feat"] = out
            elif cls is not None:
                found["last_hidden_state"] = found["final"] = out
        if kind == "none" and raw == "shared":
            model.norm = norm
    model.out_norm = raw
    want = {}
    for name, value in like.items():
        if value.ndim == 3 and name in found:  # all tokens: those of the map
            value = value[:, -size[0] * size[1] :].transpose(1, 2).unflatten(2, size)
        if name in found:
            want[name] = (found[name], value)
    return want


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files(name, shared_golden):
    config, tensors = shared_golden(name)
    make, scheme = GOLDEN[name]
    state = part(tensors, "weight/")
    if scheme == "detectron2":
        config = config if "net" in config else {"net": config}
        whole = {key: value for key, value in state.items() if key.startswith("simfp")}
        state = {f"backbone.{key}" if key.startswith("net.") else f"backbone.net.{key}": value
                 for key, value in state.items() if key not in whole}  # fmt: skip
    arch, options = make(config, state)
    if scheme != "detectron2":
        options |= {"out_norm": "shared", "output_cls_token": True}
    model = ViT(arch, out_indices=range(arch["depth"]), **options, **({} if scheme != "detectron2" else {"out_norm": "none"}))
    report = load_pretrained(model.eval(), state)
    assert report.scheme == scheme
    assert report.kept_at_init == (["rope.periods"] if name.startswith("dinov3") else [])
    errors, compared = [], set()
    for case, x in part(tensors, "input/").items():
        for key, (got, want) in outputs_of(model, x, part(tensors, f"output/{case}/")).items():
            compared.add(key)
            errors.append(float((got - want).norm() / want.norm()))
            assert (got - want).abs().max() < 1e-4, key
    assert compared
    assert max(errors) < 1e-5
    add_row("vit", scheme, f"golden {name}", [max(errors)], report.share, "bit-equal")
    print(name, len(compared), "outputs", max(errors))
    back = convert(convert(state, "vitdense").state, scheme).state
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)
