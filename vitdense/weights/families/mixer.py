"""Naming schemes of the isotropic mixers: MLP-Mixer, ResMLP and gMLP."""

from vitdense.weights.families.common import Family, prefixed, same
from vitdense.weights.rename import Rule, Scheme, Transform

# timm has ResMLP's factors and offsets as [1, 1, C].
AFFINE = Transform(lambda x: x.flatten(), lambda x: x.view(1, 1, -1))


def _block(path: str, names: dict[str, str]) -> tuple[Rule, ...]:
    """Layers of a block at `path`, theirs and ours."""
    return tuple(Rule(f"{path}{theirs}.*", f"blocks.{{i}}.{ours}.*") for theirs, ours in names.items())


_HEAD = same("norm.*", "head.*")
_STEM = Rule("stem.proj.*", "patch_embed.proj.*")
_MLPS = {f"mlp_{kind}.{fc}": f"mlp_{kind}.{fc}" for kind in ("tokens", "channels") for fc in ("fc1", "fc2")}
_GMLP = {
    "norm": "norm1",
    "mlp_channels.fc1": "fc1",
    "mlp_channels.gate.norm": "gate_norm",
    "mlp_channels.gate.proj": "linear_tokens",
    "mlp_channels.fc2": "fc2",
}
_MMPRETRAIN = (
    Rule("patch_embed.projection.*", "patch_embed.proj.*"),
    *_block("layers.{i}.", {"ln1": "norm1", "ln2": "norm2"}),
    *_block("layers.{i}.token_mix.layers.", {"0.0": "mlp_tokens.fc1", "1": "mlp_tokens.fc2"}),
    *_block("layers.{i}.channel_mix.layers.", {"0.0": "mlp_channels.fc1", "1": "mlp_channels.fc2"}),
    Rule("ln1.*", "norm.*"),
)
_NORMS = [f"blocks.{{i}}.norm{n}." for n in (1, 2)]
_OURS = ("norm1", "norm2", *_MLPS, "linear_tokens", "fc1", "fc2", "gate_norm")
MIXER = Family(
    (
        Scheme(
            "vitdense",
            (
                *(*same("patch_embed.proj.*", "norm{i}.*", "blocks.{i}.gamma_1", "blocks.{i}.gamma_2"), *_HEAD),
                *_block("blocks.{i}.", {name: name for name in _OURS}),
            ),
            wrapper="state_dict",
        ),
        Scheme(
            "timm",
            (
                *(_STEM, *_HEAD, *_block("blocks.{i}.", {**_MLPS, "linear_tokens": "linear_tokens"})),
                *(Rule(f"{norm}{name}", f"{norm}{name}") for norm in _NORMS for name in ("weight", "bias")),
                *(Rule(f"{norm}{name}", f"{norm}{name}", AFFINE) for norm in _NORMS for name in ("alpha", "beta")),
                *(Rule(f"blocks.{{i}}.ls{n}", f"blocks.{{i}}.gamma_{n}") for n in (1, 2)),
            ),
        ),
        Scheme("timm", (_STEM, *_HEAD, *_block("blocks.{i}.", _GMLP))),
        Scheme("mmpretrain", (*prefixed("backbone.", _MMPRETRAIN), Rule("head.fc.*", "head.*")), wrapper="state_dict"),
        Scheme("mmpretrain", _MMPRETRAIN, prefix="backbone.", wrapper="state_dict"),
    )
)
