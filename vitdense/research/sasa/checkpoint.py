"""Our names of a ResNet with local self-attention. No weights of others were published."""

from vitdense.checkpoint.rename import Scheme
from vitdense.checkpoint.schemes import CLASSIFIER, Family, same
from vitdense.research.resnet.checkpoint import TRUNK

_ATTENTION = same(*(f"layer{{i}}.{{j}}.conv{{k}}.attn.{name}" for name in ("qkv.weight", "rel_pos_h", "rel_pos_w")))
FAMILY = Family(
    (Scheme("vitdense", (*TRUNK, *_ATTENTION, *same("head.*")), wrapper="state_dict"),),
    markers=(r"layer\d\.\d+\.conv2\.attn\.qkv\.weight",),
    ignored=(CLASSIFIER,),
    may_be_missing=(),
)
