"""Naming schemes of the heads of EoMT and PMT: the authors', transformers' and ours."""

from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import PERIODS, Family, same
from vitdense.models.vit.foundation import DINOV3_LAYERS, block_of

_PREDICTOR = ("queries.weight", "class_head.*", "mask_head.{i}.*", "upscale.{i}.*")
_OURS = same("mask_probabilities", *(f"predictor.{name}" for name in _PREDICTOR))


def _authors(path: str) -> tuple[Rule, ...]:
    return (
        *(Rule(f"{path}{name}", f"predictor.{name}") for name in _PREDICTOR[1:]),
        Rule(f"{path}q.weight", "predictor.queries.weight"),
        Rule(f"{path}attn_mask_probs", "mask_probabilities"),
    )


_TRANSFORMERS = (
    Rule("query.weight", "predictor.queries.weight"),
    Rule("class_predictor.*", "predictor.class_head.*"),
    *(Rule(f"mask_head.fc{n + 1}.*", f"predictor.mask_head.{2 * n}.*") for n in range(3)),
    *(Rule(f"upscale_block.block.{{i}}.{x}.*", f"predictor.upscale.{{i}}.{x}.*") for x in ("conv1", "conv2")),
    Rule("upscale_block.block.{i}.layernorm2d.*", "predictor.upscale.{i}.norm.*"),
    Rule("attn_mask_probs", "mask_probabilities"),
)
EOMT = Family(
    (Scheme("vitdense", _OURS), Scheme("eomt", _authors("")), Scheme("transformers", _TRANSFORMERS)),
    ignored=(),
    may_be_missing=(),
)

_PMT_OURS = same(
    *("laterals.{i}.bn.*", "laterals.{i}.mlp.{j}.*", "laterals.{i}.scale", "norm.*", "rope.periods"),
    *(f"blocks.{{i}}.{name}" for name in ("norm1.*", "attn.*", "norm2.*", "mlp.*", "gamma_1", "gamma_2")),
)
_PMT_AUTHORS = (
    *_authors("decoder."),
    Rule("bn.{i}.*", "laterals.{i}.bn.*"),
    Rule("decoder.lateral_projections.{i}.{j}.*", "laterals.{i}.mlp.{j}.*"),
    Rule("decoder.scalers.{i}", "laterals.{i}.scale"),
    Rule("decoder.decoder_norm.*", "norm.*"),
    *block_of(DINOV3_LAYERS, "decoder.blocks.{i}."),
)
PMT = Family(
    (Scheme("vitdense", (*_OURS, *_PMT_OURS)), Scheme("pmt", _PMT_AUTHORS)), ignored=(), may_be_missing=(PERIODS,)
)
HEADS = {"eomt": EOMT, "pmt": PMT}
