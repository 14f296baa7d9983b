"""Check a converted checkpoint by running it: our model against the one it was made for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitdense.backbones import Swin, SwinV2
from vitdense.peers import PEERS, Like, oracle_shapes, raw_maps, relative_errors
from vitdense.weights.convert import Converted, of_stage
from vitdense.weights.detect import sizes
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.load import load_pretrained
from vitdense.weights.rename import find_rule, rename
from vitdense.weights.sources import CLASSIFIER, OUTPUT_NORMS, REBUILT, Scheme

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


def build_ours(
    family: str, ours: Mapping[str, Tensor], windows: Sequence[int] | None, pretrained: Sequence[int] | None
) -> nn.Module:
    """Our backbone with the sizes and the weights of a state dict by our names, without output norms, in eval mode.

    Args:
        family: Of the state dict.
        ours: Our names and what `vitdense.weights.sources` lets stand beside them.
        windows: Window sides in tokens, where the state dict does not tell them; the largest counts.
        pretrained: Swin V2's windows of pretraining, 0 for the window itself; one side in tokens or one per stage.

    Raises:
        CheckpointMismatchError: The window is neither told nor given.
    """
    found = sizes(ours)
    told = [max(window) for window in found["windows"]] or windows
    if not told:
        raise CheckpointMismatchError("--verify: the parameters do not tell the window; give it: --window-size 8")
    indices = tuple(range(len(found["depths"])))
    arch = {name: found[name] for name in ("embed_dims", "depths", "num_heads")}
    options = {"window_size": max(told), "out_indices": indices}
    if family == "swin_v2":
        trained = [of_stage(pretrained or [0], i) or max(told) for i in indices]
        arch["extra_norm_every"] = found["extra_norm_every"]
        model = SwinV2(arch, pretrained_window_sizes=trained, **options)
    else:
        model = Swin(arch, **options)
    for i in indices:
        setattr(model, f"norm{i}", nn.Identity())
    load_pretrained(model, {key: value for key, value in ours.items() if not re.fullmatch(REBUILT, key)})
    return model.eval()


def build_peer(
    family: str,
    scheme: Scheme,
    state: Mapping[str, Tensor],
    window: int,
    pretrained: Sequence[int],
    shape: tuple[int, int],
) -> nn.Module:
    """The backbone of the project whose names a state dict has, filled with it, in eval mode.

    Raises:
        CheckpointMismatchError: The project's model has other parameters.
    """
    found = {key: find_rule(key, scheme.rules) for key in state}
    told = {name: value for name, value in sizes(rename(state, scheme.rules)).items() if name != "windows"}
    like = Like(**told, window=window, shape=shape, pretrained=tuple(pretrained))
    model = PEERS[family][scheme.name].build(like)
    beside = re.compile(f"{CLASSIFIER}|{OUTPUT_NORMS}")
    trunk = {
        key.removeprefix("backbone."): value
        for key, value in state.items()
        if not beside.fullmatch(found[key][0].targets[0].fill(found[key][2]))
    }
    names = {name for name, _ in model.named_parameters() if not re.match(r"(norm\d*|head)\.", name)}
    if faults := names ^ (set(trunk) - {name for name, _ in model.named_buffers()}):
        raise CheckpointMismatchError(f"{scheme.name}'s own model does not have just these names: {sorted(faults)[:5]}")
    model.load_state_dict(trunk, strict=False)
    model.eval()
    return model


@torch.no_grad()
def verify(
    converted: Converted, windows: Sequence[int] | None = None, pretrained: Sequence[int] | None = None
) -> list[Verdict]:
    """Run our model against those of the projects whose names the source and the target have, where installed.

    Args:
        converted: From `convert`.
        windows: See `build_ours`.
        pretrained: See `build_ours`.

    Returns:
        A verdict per project other than this one.

    Raises:
        CheckpointMismatchError: The maps differ by more than rounding.
    """
    family = converted.found.family
    model = build_ours(family, converted.ours, windows, pretrained)
    window = model.stages[0].blocks[0].spec.window[0]
    trained = [of_stage(pretrained or [0], i) for i in range(len(model.stages))]
    sides = {converted.found.scheme.name: (converted.found.scheme, converted.found.state)}
    sides[converted.scheme.name] = converted.scheme, converted.backbone
    verdicts = []
    for name, (scheme, state) in sides.items():
        peer = PEERS[family].get(name)
        if name == "vitdense":
            continue
        if peer is None or not peer.is_installed:
            reason = f"{peer.package} is not installed" if peer else "its code is not a package that could be installed"
            verdicts.append(Verdict(name, None, reason))
            continue
        errors = {}
        for shape in oracle_shapes(window, len(model.stages)):
            x = torch.randn(1, 3, *shape)
            theirs = build_peer(family, scheme, state, window, trained, shape)
            errors[shape] = max(relative_errors(raw_maps(model, x), peer.maps(theirs, x)))
        if max(errors.values()) > LARGEST:
            raise CheckpointMismatchError(
                f"{Verdict(name, errors)}: the checkpoint does not mean the same to both; at most {LARGEST} expected. "
                f"Check --window-size and --pretrained-window-size; nothing was written"
            )
        verdicts.append(Verdict(name, errors))
    return verdicts
