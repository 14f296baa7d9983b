"""Files made by the authors' own code (tests/data/golden/README.md): through the production loader, our models give the
same outputs, and the weights convert back to the same bits. The larger files of ../shared are used where present."""

import json
from itertools import pairwise

import pytest
import torch
from conftest import HAS_RESEARCH, REPO, add_row, of_prefix, relative_error, without_output_norms
from safetensors import safe_open
from safetensors.torch import load_file

import vitdense
from vitdense import MViT, Swin, SwinV2, ViT
from vitdense.checkpoint.convert import convert
from vitdense.checkpoint.load import load_pretrained

FOLDERS = {"small": REPO / "tests/data/golden", "large": REPO.parent / "shared/data/golden"}


def swin(config, cls=Swin, **options):
    arch = {"embed_dims": config["embed_dim"], "depths": config["depths"], "num_heads": config["num_heads"]}
    return cls(arch, window_size=config["window_size"], mlp_ratio=config.get("mlp_ratio", 4.0), **options)


def swin_with_positions(config):
    return swin(config, absolute_position=True, pretrain_img_size=config["pretrain_img_size"])


def swin_v2(config):
    return swin(config, SwinV2, pretrained_window_sizes=config["pretrained_window_sizes"])


def mvit(config):
    first = [0, *(i + 1 for i in config["last_block_indexes"])]  # block of every stage
    depths = [end - start for start, end in pairwise(first)]
    arch = {"embed_dims": config["embed_dim"], "depths": depths, "num_heads": config["num_heads"]}
    return MViT(arch, pretrain_img_size=config.get("img_size", 224))


def vit(options=None, kind="ViT", **arch):
    def build(config):
        sizes = {"embed_dims": config["embed_dim"], "depth": config["depth"], "num_heads": config["num_heads"]}
        image = config.get("img_size", 224)
        return getattr(vitdense, kind)(
            sizes | arch, pretrain_img_size=image, out_norm="final", output_cls_token=True, **options or {}
        )

    return build


DEIT3 = {"token_position": False, "layer_scale": 1e-4}
GOLDEN = {  # naming scheme of the file, and our model for its configuration
    "swin_dense_official": ("official", swin),
    "swin_dense_official_ape_w12": ("official", swin_with_positions),
    "swin_detectron2": ("official", swin),
    "swin_classification_official": ("official", lambda config: without_output_norms(swin(config))),
    "swinv2_official": ("official", lambda config: without_output_norms(swin_v2(config))),
    "mvitv2_t_hybrid_detectron2": ("detectron2", mvit),
    "mvitv2_b_hybrid_detectron2": ("detectron2", mvit),
    "deit3_layerscale": ("official", vit(**DEIT3)),
    "deit3_hmlp_stem": ("official", vit({"stem": "hmlp"}, "StemViT", **DEIT3)),
    "deit_parallel_x2": ("official", vit({"parallel": 2}, "ParallelViT", token_position=False)),
    "deit_parallel_x2_layerscale": ("official", vit({"parallel": 2}, "ParallelViT", **DEIT3)),
    "deit_distilled": ("official", vit(distilled=True)),
    "swin_mlp_official": ("official", lambda config: without_output_norms(swin(config, vitdense.SwinMixer))),
}
OF_RESEARCH = ("deit3_hmlp_stem", "deit_parallel_x2", "deit_parallel_x2_layerscale", "swin_mlp_official")
GOLDEN = {name: row for name, row in GOLDEN.items() if HAS_RESEARCH or name not in OF_RESEARCH}
FILES = [(name, size) for name in GOLDEN for size in FOLDERS if (name, size) != ("swin_mlp_official", "small")]


def read_golden(path):
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    config = config.get("constructor", config)
    tensors = load_file(path)
    state = of_prefix(tensors, "sd.")
    inputs = [tensors[key] for key in sorted(tensors) if key.startswith("in.")]
    inputs = [x.float() / 127.5 - 1 if x.dtype == torch.uint8 else x for x in inputs]
    outputs: list[dict[int, torch.Tensor]] = [{} for _ in inputs]
    for key, value in tensors.items():
        if key.startswith("out."):
            *number, index = map(int, key.split(".")[1:])
            outputs[number[0] if number else 0][index] = value
    return config, state, inputs, outputs


@torch.no_grad()
def outputs_of(model, x, like):
    outs = model(x)
    if not isinstance(model, ViT):
        return {i: outs[i] if want.ndim == 4 else outs[i].flatten(2).transpose(1, 2) for i, want in like.items()}
    out, *tokens = outs[-1]
    patches = out.flatten(2).transpose(1, 2)  # [B, h*w, C]
    if len(tokens) == 1:
        return {0: torch.cat([tokens[0][:, None], patches], 1)}  # [B, 1 + h*w, C]
    return {i: value for i, value in enumerate([*tokens, patches]) if i in like}


@pytest.mark.parametrize(("name", "size"), FILES)
def test_outputs_and_weights_equal_the_golden_files(name, size):
    path = FOLDERS[size] / f"{name}.safetensors"
    if size == "large" and not path.is_file():
        pytest.skip("no ../shared/data")
    config, state, inputs, outputs = read_golden(path)
    scheme, make = GOLDEN[name]
    model = make(config).eval()
    report = load_pretrained(model, {"model": state})  # as published files are
    assert report.scheme == scheme
    assert report.share == 1
    assert not report.resized
    errors: dict[int, float] = {}
    for x, want in zip(inputs, outputs, strict=True):
        got = outputs_of(model, x, like=want)
        assert got.keys() == want.keys() > set()
        for i, value in want.items():
            assert got[i].shape == value.shape
            errors[i] = max(errors.get(i, 0.0), relative_error(got[i], value))
    assert inputs
    assert max(errors.values()) < 1e-5, errors

    here = convert(state, "vitdense").state
    back = convert(here, scheme, windows=[config.get("window_size", 0)],
                   pretrained_windows=config.get("pretrained_window_sizes")).backbone  # fmt: skip
    masks = {key for key in state if key.endswith("attn_mask")}  # of the image size: no other scheme keeps them
    assert back.keys() == state.keys() - masks
    for key, value in back.items():
        same = torch.allclose if key.endswith("relative_coords_table") else torch.equal  # computed again, in float64
        assert same(value, state[key]), key
    add_row(model.family, scheme, f"golden {name}, {size}", errors.values(), report.share, "bit-equal")
