"""Check a converted checkpoint by running it: our model against the one it was made for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitdense.backbones import MViT, Swin, SwinV2, ViT
from vitdense.backbones.variants import MViTArch, SwinArch, SwinV2Arch, ViTArch
from vitdense.peers import PEERS, Like, raw_maps, relative_errors, swin_shapes
from vitdense.weights.convert import Converted, of_stage
from vitdense.weights.detect import Found
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.families import CLASSIFIER, OUTPUT_NORMS, PRETRAINING, REBUILT, SCHEMES, TOKENS
from vitdense.weights.load import load_pretrained
from vitdense.weights.rename import Scheme, find_rule
from vitdense.weights.sizes import options, sizes, windows

HEADS = r"(norm\d*|ln\d|head|head_dist)\."  # of classifiers and of outputs, as the other projects name them
LARGEST = 1e-4  # relative difference; float32 rounding stays a hundred times below


@dataclass(frozen=True)
class Verdict:
    """Largest relative difference over the stages, by image size; None where the peer could not be run, and why."""

    scheme: str
    errors: dict[tuple[int, int], float] | None
    reason: str = ""

    def __str__(self) -> str:
        if self.errors is None:
            return f"verify {self.scheme}: not run, {self.reason}"
        found = ", ".join(f"{h}x{w} {error:.1e}" for (h, w), error in self.errors.items())
        return f"verify {self.scheme}: largest relative difference of a stage {found}"


@dataclass(frozen=True)
class Trial:
    """How a family is run against its peers.

    Attributes:
        ours: Our backbone with the weights of the state dict, in eval mode, without output norms.
        like: What a peer is to be built like, but for its shape.
        shapes: Image sizes (h, w) in pixels at which all implementations agree.
    """

    ours: nn.Module
    like: Like
    shapes: list[tuple[int, int]]


def unusual(family: str, ours: Mapping[str, Tensor]) -> str:
    """What a checkpoint has that a trial does not build, if anything."""
    if "patch_embed.proj.0.weight" in ours:
        return "the hMLP stem"
    proj, fc1 = (
        next(value for key, value in ours.items() if key.endswith(end))
        for end in ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight")
    )
    has = {
        f"images of {proj.shape[1]} channels": proj.shape[1] != 3,
        "an MLP that is not 4 times as wide": fc1.shape[0] != 4 * fc1.shape[1],
        "no bias of queries, keys and values": not any(".attn.q_bias" in k or ".attn.qkv.bias" in k for k in ours),
        "absolute positions": family != "vit" and "absolute_pos_embed.table" in ours,
        "relative positions": family == "vit" and any(".bias.rel_pos_h" in k for k in ours),
    }
    return ", ".join(what for what, is_so in has.items() if is_so)


def without_norms(model: nn.Module, ours: Mapping[str, Tensor]) -> nn.Module:
    """One of our backbones, filled from a state dict by our names, without its output norms."""
    for i in model.out_indices:
        setattr(model, f"norm{i}", nn.Identity())
    load_pretrained(model, {key: value for key, value in ours.items() if not re.fullmatch(REBUILT, key)})
    return model.eval()


def swin_trial(
    family: str, ours: Mapping[str, Tensor], window_sizes: Sequence[int] | None, pretrained: Sequence[int] | None
) -> Trial:
    """Swin and Swin V2.

    Args:
        family: Of the state dict.
        ours: Our names and what `vitdense.weights.sources` lets stand beside them.
        window_sizes: Window sides in tokens, where the state dict does not tell them; the largest counts.
        pretrained: Swin V2's windows of pretraining, 0 for the window itself; one side in tokens or one per stage.

    Raises:
        CheckpointMismatchError: The window is neither told nor given.
    """
    told = [max(window) for window in windows(ours)] or window_sizes
    if not told:
        raise CheckpointMismatchError("--verify: the parameters do not tell the window; give it: --window-size 8")
    window, arch = max(told), sizes(family, ours)
    indices = tuple(range(len(arch["depths"])))
    trained = tuple(of_stage(pretrained or [0], i) for i in indices)
    options = {"window_size": window, "out_indices": indices}
    if family == "swin_v2":
        model = SwinV2(arch, pretrained_window_sizes=[side or window for side in trained], **options)
        row = SwinV2Arch(**arch)
    else:
        model, row = Swin(arch, **options), SwinArch(**arch)
    shapes = swin_shapes(window, len(indices))
    return Trial(without_norms(model, ours), Like(row, shapes[0], window, trained), shapes)


def mvit_trial(ours: Mapping[str, Tensor]) -> Trial | str:
    """MViT at the size it was trained on, with global attention and, as ours are, without class token; or why no other
    project's model can be compared."""
    told = sizes("mvit", ours)
    if told["pool"] != "conv":
        return "it has no MViT v1 with the authors' poolings"
    row = MViTArch(**told)
    if not row.relative_position:
        shape = (224, 224)
    else:
        tables = (ours[f"stages.0.blocks.0.attn.bias.rel_pos_{axis}"] for axis in "hw")
        shape = tuple(4 * (len(table) + 1) // 2 for table in tables)  # patches of 4 pixels, 2 n - 1 rows for n
    if shape[0] != shape[1]:
        return f"it runs on square images only, and the tables are of {shape[0]}x{shape[1]} pixels"
    indices = range(len(row.depths))
    model = MViT(vars(row), window="global", pretrain_img_size=shape, out_indices=indices)
    return Trial(without_norms(model, ours), Like(row, shape), [shape])


def vit_trial(ours: Mapping[str, Tensor]) -> Trial | str:
    """ViT at the size it was trained on; or why no other project's model can be compared."""
    told = sizes("vit", ours)
    if not told["num_heads"]:
        return f"the parameters do not tell the heads of a width that is not published, {told['embed_dims']}"
    if "tokens.cls_token" not in ours:
        return "it has a class token, and the checkpoint has none"
    row, parallel = ViTArch(**told), options("vit", ours)["parallel"]
    shape = tuple(side * row.patch_size for side in ours["absolute_pos_embed.table"].shape[1:3])
    model = ViT(vars(row), parallel=parallel, out_norm="none", pretrain_img_size=shape)
    return Trial(without_norms(model, ours), Like(row, shape, parallel=parallel), [shape])


def build_peer(family: str, scheme: Scheme, state: Mapping[str, Tensor], like: Like) -> nn.Module:
    """The backbone of the project whose names a state dict has, filled with it, in eval mode.

    Args:
        family: Of the state dict.
        scheme: Its names.
        state: Of a backbone, with whatever may stand beside.
        like: What it is to be built like.

    Raises:
        CheckpointMismatchError: The project's model has other parameters.
    """
    found = {key: find_rule(key, scheme.rules) for key in state}
    model = PEERS[family][scheme.name].build(like)
    # The others are built without tokens.
    beside = re.compile("|".join((CLASSIFIER, PRETRAINING, OUTPUT_NORMS) + (TOKENS,) * (family != "vit")))
    ours = {key: rule.targets[0].fill(values) for key, (rule, _, values) in found.items()}
    trunk = {
        key.removeprefix("backbone."): value
        for key, value in state.items()
        if not beside.fullmatch(ours[key]) and not ours[key].endswith("attn_mask")  # of one image size
    }
    theirs = {name: x.shape for name, x in model.named_parameters() if not re.match(HEADS, name)}
    buffers = {name for name, _ in model.named_buffers()}
    given = {name: x.shape for name, x in trunk.items() if name not in buffers}
    if faults := sorted({name for name, _ in theirs.items() ^ given.items()}):
        raise CheckpointMismatchError(
            f"{scheme.name}'s own model does not have just these names and shapes: {faults[:5]}"
        )
    model.load_state_dict(trunk, strict=False)
    model.eval()
    return model


def runnable(family: str, scheme: Scheme, state: Mapping[str, Tensor]) -> Scheme:
    """The scheme, or one of a project that can be run and takes these names for the same: without LayerScale, timm's
    ViTs have the authors' names."""
    if scheme.name in PEERS[family]:
        return scheme
    wanted = Found(family, scheme, "", state, {}).meaning()
    for row in SCHEMES[family]:
        found = Found(family, row, "", state, {})
        if row.name in PEERS[family] and not found.faults() and found.meaning() == wanted:
            return row
    return scheme


@torch.no_grad()
def verify(
    converted: Converted, window_sizes: Sequence[int] | None = None, pretrained: Sequence[int] | None = None
) -> list[Verdict]:
    """Run our model against those of the projects whose names the source and the target have, where installed.

    Args:
        converted: From `convert`.
        window_sizes: See `swin_trial`.
        pretrained: See `swin_trial`.

    Returns:
        A verdict per project other than this one.

    Raises:
        CheckpointMismatchError: The maps differ by more than rounding.
    """
    family = converted.found.family
    if odd := unusual(family, converted.ours):
        trial = f"the checkpoint has {odd}, which it does not build"
    elif family == "mvit":
        trial = mvit_trial(converted.ours)
    elif family == "vit":
        trial = vit_trial(converted.ours)
    else:
        trial = swin_trial(family, converted.ours, window_sizes, pretrained)
    sides = {}
    for scheme, state in (
        (converted.found.scheme, converted.found.state),
        (converted.scheme, converted.backbone),
    ):
        scheme = runnable(family, scheme, state)
        sides[scheme.name] = scheme, state
    verdicts = []
    for name, (scheme, state) in sides.items():
        peer = PEERS[family].get(name)
        if name == "vitdense":
            continue
        if peer is None or not peer.is_installed:
            reason = f"{peer.package} is not installed" if peer else "its code is not a package that could be installed"
            verdicts.append(Verdict(name, None, reason))
            continue
        if isinstance(trial, str):
            verdicts.append(Verdict(name, None, trial))
            continue
        if lacks := peer.lacks(trial.like):
            verdicts.append(Verdict(name, None, f"{peer.package} has no model with {lacks}"))
            continue
        errors = {}
        for shape in trial.shapes:
            x = torch.randn(1, 3, *shape)
            theirs = build_peer(family, scheme, state, replace(trial.like, shape=shape))
            errors[shape] = max(relative_errors(raw_maps(trial.ours, x), peer.maps(theirs, x)))
        if max(errors.values()) > LARGEST:
            raise CheckpointMismatchError(
                f"{Verdict(name, errors)}: the checkpoint does not mean the same to both; at most {LARGEST} expected, "
                f"nothing was written" + "; check --window-size and --pretrained-window-size" * ("swin" in family)
            )
        verdicts.append(Verdict(name, errors))
    return verdicts
