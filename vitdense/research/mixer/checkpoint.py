"""Naming schemes of the isotropic mixers: MLP-Mixer, ResMLP and gMLP."""

from vitdense.checkpoint.rename import Rule, Scheme, Transform
from vitdense.checkpoint.schemes import Family, prefixed, same

# timm has ResMLP's factors and offsets as [1, 1, C].
AFFINE = Transform(lambda x: x.squeeze(0).squeeze(0), lambda x: x.view(1, 1, -1))


def _block(path: str, names: dict[str, str], transform: Transform | None = None) -> tuple[Rule, ...]:
    return tuple(Rule(path + theirs, "blocks.{i}." + ours, transform) for theirs, ours in names.items())


_HEAD = same("norm.*", "head.*")
_STEM = Rule("stem.proj.*", "patch_embed.proj.*")
_OURS = ("norm1", "norm2", "mlp_tokens", "mlp_channels", "linear_tokens", "fc1", "gate_norm", "fc2")
_TIMM = {f"mlp_{kind}.{fc}.*": f"mlp_{kind}.{fc}.*" for kind in ("tokens", "channels") for fc in ("fc1", "fc2")}
_TIMM |= {f"norm{n}.{name}": f"norm{n}.{name}" for n in (1, 2) for name in ("weight", "bias")}
_TIMM |= {"linear_tokens.*": "linear_tokens.*", "ls1": "gamma_1", "ls2": "gamma_2"}
_TIMM_AFFINE = {f"norm{n}.{name}": f"norm{n}.{name}" for n in (1, 2) for name in ("alpha", "beta")}
_TIMM_GMLP = {
    "norm.*": "norm1.*",
    "mlp_channels.fc1.*": "fc1.*",
    "mlp_channels.gate.norm.*": "gate_norm.*",
    "mlp_channels.gate.proj.*": "linear_tokens.*",
    "mlp_channels.fc2.*": "fc2.*",
}
_MMPRETRAIN = (
    *(Rule("patch_embed.projection.*", "patch_embed.proj.*"), Rule("ln1.*", "norm.*")),
    *_block("layers.{i}.", {"ln1.*": "norm1.*", "ln2.*": "norm2.*"}),
    *_block("layers.{i}.token_mix.layers.", {"0.0.*": "mlp_tokens.fc1.*", "1.*": "mlp_tokens.fc2.*"}),
    *_block("layers.{i}.channel_mix.layers.", {"0.0.*": "mlp_channels.fc1.*", "1.*": "mlp_channels.fc2.*"}),
)
FAMILY = Family(
    (
        Scheme(
            "vitdense",
            (
                *same("patch_embed.proj.*", "norm{i}.*", "blocks.{i}.gamma_1", "blocks.{i}.gamma_2"),
                *(*_HEAD, *same(*(f"blocks.{{i}}.{name}.*" for name in _OURS))),
            ),
            wrapper="state_dict",
        ),
        Scheme(
            "timm",
            (*(_STEM, *_HEAD), *_block("blocks.{i}.", _TIMM), *_block("blocks.{i}.", _TIMM_AFFINE, AFFINE)),
        ),
        Scheme("timm", (_STEM, *_HEAD, *_block("blocks.{i}.", _TIMM_GMLP))),
        Scheme("mmpretrain", (*prefixed("backbone.", _MMPRETRAIN), Rule("head.fc.*", "head.*")), wrapper="state_dict"),
        Scheme("mmpretrain", _MMPRETRAIN, prefix="backbone.", wrapper="state_dict"),
    ),
    markers=(r"blocks\.\d+\.(mlp_tokens\.fc1|linear_tokens)\.weight",),
)
