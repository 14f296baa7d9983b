"""Verify a converted checkpoint: compare the maps of our model with those of other projects' models."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peers import PEERS, PeerSpec, raw_maps, relative_errors
from vitdense.checkpoint.convert import Converted
from vitdense.checkpoint.errors import CheckpointMismatchError
from vitdense.checkpoint.load import load_pretrained
from vitdense.checkpoint.schemes import REBUILT
from vitdense.models.base import Backbone

HEADS = r"(norm\d*|ln1|head|head_dist|fc|fc_norm)\..+"  # parameters of peers after the last block of a stage
BIASES = r".+\.attn\.[qv]_bias"  # of timm's models: zero at first, and some of its files of DINOv3 have none
LARGEST = 1e-4  # relative difference; float32 rounding gives about 1e-6


@dataclass(frozen=True)
class Result:
    """Result of the comparison with the model of one project."""

    scheme: str  # naming scheme of its weights
    shape: tuple[int, int]  # image (h, w) in pixels
    errors: Sequence[float] | None = None  # relative difference of every stage's map; None if the model was not run
    reason: str = ""  # why it was not run

    def __str__(self) -> str:
        if self.errors is None:
            return f"verify {self.scheme}: not run, {self.reason}"
        errors = ", ".join(f"{error:.1e}" for error in self.errors)
        return f"verify {self.scheme}: relative difference of the stages at {self.shape[0]}x{self.shape[1]}: {errors}"


def reason_not_to_run(family: str, scheme: str, spec: PeerSpec) -> str:
    """Why the model of a project cannot be run; empty if it can."""
    peer = PEERS[family].get(scheme)
    if peer is None:
        return "its code is not an installable package"
    if not peer.is_installed:
        return f"{peer.package} is not installed"
    features = peer.unsupported_features(spec)
    return f"{peer.package} has no model with {features}" if features else ""


def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the backbone of a checkpoint into a peer.

    Unexpected keys are ignored: if our model needs them, the maps differ.

    Raises:
        CheckpointMismatchError: A key is missing, or has another size.
    """
    state = {key.removeprefix("backbone."): value for key, value in state.items()}
    needed = {key for key, _ in model.named_parameters() if not re.fullmatch(BIASES, key)}
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
    """Compare our model with those of the source's and the target's projects, on a random image.

    Args:
        converted: From `convert`.
        model: From `peers.comparable`. It is changed: it gets the weights of the checkpoint, and no output norms.
        spec: From `peers.comparable`.

    Returns:
        A result per other project.

    Raises:
        CheckpointMismatchError: The checkpoint does not fit `model` or a peer, or their maps differ by more than
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
        if reason := reason_not_to_run(model.family, scheme, spec):
            results.append(Result(scheme, spec.shape, reason=reason))
            continue
        peer = PEERS[model.family][scheme]
        theirs = peer.build(spec)
        fill(theirs, state)
        theirs.eval()
        results.append(Result(scheme, spec.shape, relative_errors(raw_maps(model, x), peer.maps(theirs, x))))
        if not max(results[-1].errors) <= LARGEST:
            raise CheckpointMismatchError(
                f"{results[-1]}, expected at most {LARGEST}: both models load the checkpoint, but differ; nothing was "
                f"written. Check that it is a checkpoint of the named model"
            )
    return results
