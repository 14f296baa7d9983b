"""Normalisation: that of the images against what the pretrained weights expect."""

from collections.abc import Iterator, Sequence

from mmengine.config import Config

from vitdense.mm.checks.base import Finding, caught
from vitdense.mm.config.backbone import expected_preprocessor, row_of_weights, trunk_of
from vitdense.mm.errors import ConfigError


def find(cfg: Config, splits: Sequence[str]) -> Iterator[Finding]:
    """See the module."""
    if "train" in splits:  # a trained model has the statistics of its training
        yield from caught(check_normalisation, cfg)


def check_normalisation(cfg: Config) -> None:
    """Check mean, std and channel order of the data preprocessor against what the pretrained weights expect.

    Wrong ones raise no error in training and cost accuracy. Not checked are weights of no row of the model table, or
    with ``channels`` in `init_cfg`, models without a data preprocessor, whose pipeline normalises, and configs with
    ``settings = dict(normalisation="own")``.

    Raises:
        ConfigError: They differ.
    """
    model, row = cfg.model.get("module", cfg.model), row_of_weights(trunk_of(cfg))
    preprocessor = model.get("data_preprocessor") or cfg.get("data_preprocessor")
    if not preprocessor or row is None or cfg.get("settings", {}).get("normalisation") == "own":
        return
    pairs = expected_preprocessor(row).items()
    if wrong := {key: value for key, value in pairs if not _is_close(preprocessor.get(key), value)}:
        got = ", ".join(f"{key}={preprocessor.get(key)!r}" for key in wrong)
        expected = ", ".join(f"{key}={value!r}" for key, value in wrong.items())
        raise ConfigError(
            f"model.data_preprocessor: got {got}, but the weights {row.name} expect {expected}; set "
            f"model = dict(data_preprocessor=dict({expected})), or, to normalise images otherwise on purpose, "
            f"settings = dict(normalisation='own')"
        )


def _is_close(got: Sequence[float] | bool | None, expected: Sequence[float] | bool) -> bool:
    """Equal up to rounding: half a grey level."""
    if isinstance(expected, bool) or not got:
        return got == expected
    return len(got) == len(expected) and all(abs(a - b) <= 0.5 for a, b in zip(got, expected))
