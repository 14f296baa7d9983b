"""Naming schemes of hybrid ViTs: the schemes of ViT, with the ResNet in timm's names."""

from vitdense.checkpoint.rename import Scheme
from vitdense.checkpoint.schemes import Family, same
from vitdense.models.vit.checkpoint import FAMILY as VIT
from vitdense.models.vit.checkpoint import TIMM
from vitdense.models.vit.foundation import PLAIN, block_of

_RESNET = same("patch_embed.backbone.*")
FAMILY = Family(
    (
        Scheme("vitdense", (*_RESNET, *VIT.schemes[0].rules), wrapper="state_dict"),
        Scheme("timm", (*_RESNET, *TIMM, *block_of(PLAIN))),
    ),
    markers=(r"patch_embed\.backbone\.stem\.conv\.weight",),
    parts_in_timm=VIT.parts_in_timm,
    check=VIT.check,
)
