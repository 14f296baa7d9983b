"""Ablations and systems of the papers, a folder per paper. Nothing imports this package; the rest works without it.

Its classes are found by `FAMILIES`, and registered with mm by `vitdense.research.registered`.
"""

# Class -> folder, as in `vitdense.models`.
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
    "ResNet": "resnet",
    "NonLocalResNet": "non_local",
    "SASA": "sasa",
}
