"""Naming schemes of RF-DETR's neck and head with keypoints: ours and the authors'."""

from dataclasses import replace

from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import same
from vitdense.models.vit.rfdetr import AT, AUTHORS, HEAD, JOINED, OURS, PARTS, PROJECTOR, SAMPLING, STAGES, layers

_CROSS = {f"point_{name}": f"kp_cross_attn.{other}" for name, other in SAMPLING.items()}
_POINTS = {"point_fc1": "kp_linear1", "point_fc2": "kp_linear3", "joint_norm": "kp_inst_norm", "point_norm1": "kp_norm"}
_POINTS |= {"point_norm2": "kp_cross_attn_norm", "point_norm3": "kp_norm5"}
_QUERIES = {"points": "keypoint_query_initializer", "first_points": "keypoint_query_initializer_enc"}  # ours, theirs
_OURS = same(
    *("decoder.kinds", "decoder.layers.{i}.joint_scale", "decoder.layers.{i}.joint.*", "keypoints.layers.{i}.*"),
    *(f"decoder.layers.{{i}}.{name}.*" for name in (*_CROSS, *_POINTS)),
    *("first_keypoints.{i}.layers.{j}.*", "points.*", "first_points.*"),
)
_AUTHORS = (
    *(
        Rule(f"transformer.{AT}kp_inst_self_attn.in_proj_{x}", (f"{AT}joint.qk.{x}", f"{AT}joint.v.{x}"), JOINED)
        for x in ("weight", "bias")
    ),
    *layers(f"transformer.{AT}kp_inst_self_attn.", f"{AT}joint.", proj="out_proj"),
    *layers(f"transformer.{AT}", AT, **_CROSS, **_POINTS),
    Rule(f"transformer.{AT}instance_kp_layer_scale", f"{AT}joint_scale"),
    Rule("transformer.decoder.keypoint_pos_embed", "decoder.kinds"),
    *(Rule(f"transformer.{theirs}.queries", f"{ours}.queries") for ours, theirs in _QUERIES.items()),
    *(
        rule
        for ours, theirs in _QUERIES.items()
        for rule in layers(
            f"transformer.{theirs}.",
            f"{ours}.",
            **{"fc1": "adaLN_modulation.0", "fc2": "adaLN_modulation.2", "proj": "out_proj"},
        )
    ),
    Rule("transformer.enc_out_keypoint_embed.{i}.layers.{j}.*", "first_keypoints.{i}.layers.{j}.*"),
    Rule("keypoint_embed.layers.{i}.*", "keypoints.layers.{i}.*"),
)
_SECOND = tuple(Rule(f"cross_attn_projector.{rule.theirs}", f"keypoints.{rule.ours}") for rule in STAGES)
HEADS = {
    "rfdetr_keypoints": replace(
        HEAD,
        schemes=(Scheme("vitdense", (*OURS, *_OURS)), Scheme("rfdetr", (*AUTHORS, *_AUTHORS))),
        markers=(r"decoder\.kinds",),  # only heads with keypoints have it
    ),
    "rfdetr_keypoints_projector": replace(
        PROJECTOR,
        schemes=(
            Scheme("vitdense", same(*PARTS, *(f"keypoints.{part}" for part in PARTS))),
            Scheme("rfdetr", (*STAGES, *_SECOND)),
        ),
        markers=(r"keypoints\.norm\.weight",),
    ),
}
