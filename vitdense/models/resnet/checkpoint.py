"""Naming schemes of ResNet: torchvision's names are everybody's. What differs is the classifier."""

from vitdense.checkpoint.family import CLASSIFIER, Family, prefixed, same
from vitdense.checkpoint.rename import Rule, Scheme

_BLOCK = ("conv{k}.weight", "bn{k}.*", "downsample.{k}.*")
_LOCAL = ("attn.qkv.weight", "attn.rel_pos_h", "attn.rel_pos_w")  # attention in place of a convolution; ours alone
_TRUNK = same("conv1.weight", "bn1.*", *(f"layer{{i}}.{{j}}.{name}" for name in _BLOCK))
_ATTENTION = same("layer{i}.attn.{j}.*", *(f"layer{{i}}.{{j}}.conv{{k}}.{name}" for name in _LOCAL))
_FC = Rule("fc.*", "head.*")
FAMILY = Family(
    (
        Scheme("vitdense", (*_TRUNK, *_ATTENTION, *same("head.*")), wrapper="state_dict"),
        Scheme("torchvision", (*_TRUNK, _FC)),
        Scheme("timm", (*_TRUNK, _FC)),
        Scheme("mmdet", _TRUNK, prefix="backbone.", wrapper="state_dict"),  # also mmseg
        Scheme("mmpretrain", (*prefixed("backbone.", _TRUNK), Rule("head.fc.*", "head.*")), wrapper="state_dict"),
    ),
    markers=(r"conv1\.weight",),
    ignored=(CLASSIFIER,),
    # No published file has attention. torchvision's first files are older than the counters of BN.
    may_be_missing=(r"layer\d\.attn\..+", r".+\.num_batches_tracked"),
)
