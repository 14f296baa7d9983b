"""Every naming scheme, proved by running the model it belongs to: random weights of each, through the production
loader, give the features of that model, and convert back bit by bit. The module prints the table (`pytest -s`)."""

import json

import pytest
import torch
from conftest import relative_error
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from vitdense.backbones import Swin, SwinV2
from vitdense.backbones.variants import SWIN, SWIN_V2
from vitdense.peers import PEERS, Like, raw_maps, relative_errors
from vitdense.report import num_params
from vitdense.weights.convert import convert
from vitdense.weights.load import load_pretrained

# At 448 (512 for V2) pixels, with windows of 7 (8), every map is of several whole windows: there all agree, also the
# classification codes, which do not shift on a map that is one window.
FAMILIES = {"swin": (Swin, SWIN["tiny"], 7, 448), "swin_v2": (SwinV2, SWIN_V2["tiny"], 8, 512)}
TABLE: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _print_table():
    yield
    print(f"\n{'family':8} {'names':12} {'from':35} {'relative error per stage':38} {'filled':>8}  back")
    print("\n".join(TABLE))


def add_row(family, scheme, source, errors, share, back):
    errors = ", ".join(f"{e:.1e}" for e in errors)
    TABLE.append(f"{family:8} {scheme:12} {source:35} {errors:38} {100 * share:6.2f} %  {back}")


def without_output_norms(model):
    """The maps are compared before the output norms, which no classification checkpoint has."""
    for i in model.out_indices:
        setattr(model, f"norm{i}", nn.Identity())
    return model.eval()


def randomise(model):
    for name, parameter in model.named_parameters():  # norms and biases too: 1 and 0 would hide a swap
        nn.init.normal_(parameter, mean=2.3 if name.endswith("logit_scale") else 0.0, std=0.05)
    for module in model.modules():
        if hasattr(module, "logit_scale") and getattr(module.qkv, "bias", None) is not None:
            # torchvision keeps a bias for keys that it never uses: the one thing that comes back as zero.
            module.qkv.bias.data.chunk(3)[1].zero_()
    model.eval()  # returns None in mmdet
    return model


def state_of(peer, scheme):
    """As a file of that project holds it."""
    prefix = "backbone." if scheme in ("mmdet", "mmpretrain") else ""
    state = {prefix + key: value for key, value in peer.state_dict().items()}
    if scheme == "mmpretrain":  # a classifier: its norm is the last output norm, its head stands beside the backbone
        state = {key: value for key, value in state.items() if not key.startswith(("backbone.norm0", "backbone.norm1"))}
        state = {key: value for key, value in state.items() if not key.startswith("backbone.norm2")}
        dims = state["backbone.norm3.weight"].numel()
        state |= {"head.fc.weight": torch.randn(10, dims), "head.fc.bias": torch.randn(10)}
    return state


@pytest.mark.parametrize(("family", "scheme"), [(f, s) for f, peers in PEERS.items() for s in peers])
def test_random_weights_of_every_scheme_give_the_features_of_its_model_and_convert_back(family, scheme):
    peer = PEERS[family][scheme]
    pytest.importorskip(peer.package)
    make, arch, window, side = FAMILIES[family]
    theirs = randomise(peer.build(Like(**vars(arch), window=window, shape=(side, side))))
    state = state_of(theirs, scheme)
    ours = without_output_norms(make("tiny", window_size=window))
    report = load_pretrained(ours, {"state_dict": state})
    assert report.scheme == scheme
    assert report.share == 1
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        errors = relative_errors(raw_maps(ours, x), peer.maps(theirs, x))
    assert max(errors) < 1e-5, errors
    here = convert(state, "vitdense")
    back = convert(here.state, scheme, windows=[window]).state
    assert back.keys() == state.keys()
    for key, value in state.items():
        same = torch.allclose if key.endswith("relative_coords_table") else torch.equal  # made anew, in float64
        assert same(back[key], value), key
    add_row(family, scheme, f"{num_params(theirs) / 1e6:.1f} M random", errors, report.share, "bit-equal")


GOLDEN = {
    "swin_dense_official": "dense",
    "swin_dense_official_ape_w12": "dense",
    "swin_detectron2": "dense",
    "swin_classification_official": "classifier",
    "swinv2_official": "classifier",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_of_the_authors(shared_data, name):
    path = shared_data / "golden" / f"{name}.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    family = "swin_v2" if "v2" in name else "swin"
    arch = {"embed_dims": config["embed_dim"], "depths": config["depths"], "num_heads": config["num_heads"]}
    options = {"window_size": config["window_size"]}
    if family == "swin_v2":
        options["pretrained_window_sizes"] = config["pretrained_window_sizes"]
    if "ape" in config:
        options |= {"absolute_position": True, "pretrain_img_size": config["pretrain_img_size"]}
    model = FAMILIES[family][0](arch, **options).eval()
    if GOLDEN[name] == "classifier":
        model = without_output_norms(model)
    state = {key.removeprefix("sd."): value for key, value in tensors.items() if key.startswith("sd.")}
    report = load_pretrained(model, state)
    assert report.scheme == "official"
    assert report.share == 1
    inputs = [key for key in tensors if key.startswith("in.")]
    assert inputs
    worst = [0.0] * 4
    for key in inputs:
        wanted = {int(k.rpartition(".")[2]): v for k, v in tensors.items() if k.startswith(f"out.{key[3:]}.")}
        assert len(wanted) >= 3
        with torch.no_grad():
            outs = model(tensors[key])
        for i, want in wanted.items():
            got = outs[i] if want.ndim == 4 else outs[i].flatten(2).transpose(1, 2)  # [B, C, h, w] or [B, h*w, C]
            worst[i] = max(worst[i], relative_error(got, want))
    assert max(worst) < 1e-5, worst
    back = convert(convert(state, "vitdense").state, "official", windows=[config["window_size"]],
                   pretrained_windows=config.get("pretrained_window_sizes")).state  # fmt: skip
    masks = {key for key in state if key.endswith("attn_mask")}  # of the image size: no other scheme keeps them
    assert back.keys() == state.keys() - masks
    for key in back:
        same = torch.allclose if key.endswith("relative_coords_table") else torch.equal
        assert same(back[key], state[key]), key
    add_row(family, "official", f"golden {name}", worst, report.share, "bit-equal")
