"""Naming schemes of ResNet: all projects use torchvision's names, except for the classifier."""

from vitdense.checkpoint.rename import Rule, Scheme
from vitdense.checkpoint.schemes import CLASSIFIER, Family, prefixed, same

_BLOCK = ("conv{k}.weight", "bn{k}.*", "downsample.{k}.*")
TRUNK = same("conv1.weight", "bn1.*", *(f"layer{{i}}.{{j}}.{name}" for name in _BLOCK))
_FC = Rule("fc.*", "head.*")
FAMILY = Family(
    (
        Scheme("vitdense", (*TRUNK, *same("head.*", "layer{i}.attn.{j}.*")), wrapper="state_dict"),
        Scheme("torchvision", (*TRUNK, _FC)),
        Scheme("timm", (*TRUNK, _FC)),
        Scheme("mmdet", TRUNK, prefix="backbone.", wrapper="state_dict"),  # also mmseg
        Scheme("mmpretrain", (*prefixed("backbone.", TRUNK), Rule("head.fc.*", "head.*")), wrapper="state_dict"),
    ),
    markers=(r"conv1\.weight",),
    ignored=(CLASSIFIER,),
    # Published files have no attention between blocks. torchvision's first files lack the counters of BN.
    may_be_missing=(r"layer\d\.attn\..+", r".+\.num_batches_tracked"),
)
