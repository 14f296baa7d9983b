"""Check a converted checkpoint by running it: our model against the models of other projects that it is made for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peers import PEERS, PeerSpec, raw_maps, relative_errors
from vitdense.backbones.base import Backbone
from vitdense.weights.convert import Converted
from vitdense.weights.errors import CheckpointMismatchError
from vitdense.weights.families import REBUILT
from vitdense.weights.load import load_pretrained

HEADS = r"(norm\d*|ln1|head|head_dist)\..+"  # parameters of the peers after the last block of a stage
LARGEST = 1e-4  # relative difference; that of float32 rounding is a hundred times smaller


@dataclass(frozen=True)
class Result:
    """What the comparison with one project's model gave.

    Attributes:
        scheme: Naming scheme of the weights that it ran with.
        shape: Image (h, w) in pixels.
        errors: Relative difference of the map of every stage; None where the model could not be run.
        reason: Why not.
    """

    scheme: str
    shape: tuple[int, int]
    errors: Sequence[float] | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.errors is None:
            return f"verify {self.scheme}: not run, {self.reason}"
        errors = ", ".join(f"{error:.1e}" for error in self.errors)
        return f"verify {self.scheme}: relative difference of the stages at {self.shape[0]}x{self.shape[1]}: {errors}"


def why_not(family: str, scheme: str, spec: PeerSpec) -> str:
    """Why a project's model cannot be run; empty if it can."""
    peer = PEERS[family].get(scheme)
    if peer is None:
        return "its code is not a package that could be installed"
    if not peer.is_installed:
        return f"{peer.package} is not installed"
    features = peer.unsupported_features(spec)
    return f"{peer.package} has no model with {features}" if features else ""


def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the backbone of a checkpoint into a peer.

    Names that the peer does not have are ignored: if ours needs them, the maps differ.

    Raises:
        CheckpointMismatchError: A parameter is missing, or a shape is another.
    """
    state = {key.removeprefix("backbone."): value for key, value in state.items()}
    needed = {key for key, _ in model.named_parameters()}
    targets = {key: x for key, x in model.state_dict().items() if not re.fullmatch(HEADS, key)}
    missing = sorted(key for key in targets if key in needed and key not in state)
    mismatched = sorted(key for key, x in targets.items() if key in state and state[key].shape != x.shape)
    if missing or mismatched:
        raise CheckpointMismatchError(
            f"{type(model).__module__} does not accept the converted names: missing keys {missing[:5]}, size mismatch "
            f"{mismatched[:5]}"
        )
    model.load_state_dict({key: state[key] for key in targets if key in state}, strict=False)


@torch.no_grad()
def verify(converted: Converted, model: Backbone, spec: PeerSpec) -> list[Result]:
    """Run our model against those of the projects whose names the source and the target have, on a random image.

    Args:
        converted: From `convert`.
        model: Ours, from `peers.comparable`. It gets the weights of the checkpoint and loses its output norms.
        spec: What the others are built from, from the same.

    Returns:
        A result per project other than this one.

    Raises:
        CheckpointMismatchError: The checkpoint is not one of `model` or of a peer, or their maps differ by more than
            rounding.
    """
    for i in model.out_indices:
        setattr(model, f"norm{i}", nn.Identity())
    load_pretrained(model, {key: x for key, x in converted.ours.items() if not re.fullmatch(REBUILT, key)})
    model.eval()
    x = torch.randn(1, 3, *spec.shape)
    states = {converted.match.scheme.name: converted.match.state, converted.scheme.name: converted.backbone}
    results = []
    for scheme, state in states.items():
        if scheme == "vitdense":
            continue
        if reason := why_not(model.family, scheme, spec):
            results.append(Result(scheme, spec.shape, reason=reason))
            continue
        peer = PEERS[model.family][scheme]
        theirs = peer.build(spec)
        fill(theirs, state)
        theirs.eval()
        results.append(Result(scheme, spec.shape, relative_errors(raw_maps(model, x), peer.maps(theirs, x))))
        if not max(results[-1].errors) <= LARGEST:
            raise CheckpointMismatchError(
                f"{results[-1]}, expected at most {LARGEST}: the checkpoint does not mean the same to both; "
                f"nothing was written. Check that it is of the model named"
            )
    return results
