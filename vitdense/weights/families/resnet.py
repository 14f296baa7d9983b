"""Naming schemes of ResNet: torchvision's names are everybody's. What differs is the classifier."""

from vitdense.weights.families.common import CLASSIFIER, Family, prefixed, same
from vitdense.weights.rename import Rule, Scheme

_TRUNK = same("conv1.weight", "bn1.*", "layer{i}.{j}.*")
_FC = Rule("fc.*", "head.*")
RESNET = Family(
    (
        Scheme("vitdense", (*_TRUNK, *same("layer{i}.attn.{j}.*", "head.*")), wrapper="state_dict"),
        Scheme("torchvision", (*_TRUNK, _FC)),
        Scheme("timm", (*_TRUNK, _FC)),
        Scheme("mmdet", _TRUNK, prefix="backbone.", wrapper="state_dict"),  # also mmseg
        Scheme("mmpretrain", (*prefixed("backbone.", _TRUNK), Rule("head.fc.*", "head.*")), wrapper="state_dict"),
    ),
    ignored=(CLASSIFIER,),
    # No published file has attention. torchvision's first files are older than the counters of BN.
    may_be_missing=(r"layer\d\.attn\..+", r".+\.num_batches_tracked"),
)
