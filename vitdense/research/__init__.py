"""Ablations and systems of the papers, a folder per paper. It imports the other floors; nothing imports it.

Its classes are found by `FAMILIES`, what mm builds by `vitdense.research.registered`: without this folder, all the rest
works.
"""

# Class: folder, as in `vitdense.models`.
FAMILIES = {
    "NAT": "nat",
    "PositionSwin": "swin_ablations",
    "SlidingSwin": "swin_ablations",
    "PerformerSwin": "swin_ablations",
    "SwinMixer": "swin_mixer",
    "Mixer": "mixer",
    "StemViT": "three_things",
    "ParallelViT": "three_things",
    "CaiT": "cait",
    "HybridViT": "hybrid_vit",
    "PositionViT": "vit_positions",
    "NonLocalResNet": "non_local",
    "SASA": "sasa",
}
