"""Research models and their peers in other projects, for `checkpoint/test_schemes.py`: ours, and the peer's spec."""

from dataclasses import replace
from functools import partial

from peers import PeerSpec
from vitdense import CaiT, HybridViT, Mixer, ParallelViT, ResNet
from vitdense.models.vit.sizes import VIT, ViTArch
from vitdense.research.cait.sizes import CAIT
from vitdense.research.hybrid_vit.sizes import RESNETS
from vitdense.research.mixer.sizes import MixerArch
from vitdense.research.resnet.sizes import RESNET

PARALLEL = {"embed_dims": 192, "depth": 6, "num_heads": 3, "token_position": False, "layer_scale": 1.0}
MIXER = {"embed_dims": 96, "depth": 4}
MODELS = {
    ("cait", "xxs24"): (lambda: CaiT("cait_xxs24", out_norm="none"), PeerSpec(CAIT["cait_xxs24"], (224, 224))),
    **{
        ("three_things", f"{depth} blocks of {n}"): (
            lambda depth=depth, n=n, **options: ParallelViT(
                {**PARALLEL, "depth": depth}, parallel=n, out_norm="none", **options
            ),
            PeerSpec(ViTArch(**{**PARALLEL, "depth": depth}), (224, 224), parallel=n),
        )
        for depth, n in ((PARALLEL["depth"], 2), (4, 4))
    },
    **{
        ("hybrid_vit", f"{name}, {stem}"): (
            lambda name=name, stem=stem, **options: HybridViT(name, stem=stem, out_norm="none", **options),
            PeerSpec(replace(VIT[name], patch_size=int(stem[-2:])), (224, 224), resnet=RESNETS[stem]),
        )
        for name, stem in (("vit_small", "r26_s32"), ("vit_tiny", "r50_s16"))
    },
    **{
        ("resnet", name): (lambda name=name: ResNet(name), PeerSpec(RESNET[name], (97, 131)))
        for name in ("resnet18", "resnet50")
    },
    # At the size of pretraining both rules for other sizes are the published model.
    **{
        ("mixer", name): (partial(Mixer, arch, **options), PeerSpec(MixerArch(**arch), (224, 224)))
        for name, arch, options in (
            ("windows", MIXER, {"transfer": "windows"}),
            ("resize", MIXER, {"transfer": "resize"}),
            ("ResMLP", {**MIXER, "block": "resmlp", "layer_scale": 1.0}, {}),
            ("gMLP", {**MIXER, "block": "gmlp", "mlp_ratio": 6.0}, {}),
        )
    },
}
