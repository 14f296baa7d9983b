"""Whole files of EoMT and PMT, and files of a PMT's head alone: which keys are of the trunk, which of the head."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

# Regular expressions of keys, and the name in a model with `backbone` and `head`; None: not needed there.
_WHOLE_AUTHORS = {
    r"network\.encoder\.backbone\.(?P<tail>.+)": "backbone.",
    r"network\.encoder\.pixel_(mean|std)|criterion\.empty_weight": None,
    r"network\.(?P<tail>.+)": "head.",
}
_WHOLE_TRANSFORMERS = {
    r"(?P<tail>(embeddings|layers|layernorm)\..+)": "backbone.",
    r"criterion\.empty_weight": None,
    r"(?P<tail>(query|class_predictor|mask_head|upscale_block)\..+|attn_mask_probs)": "head.",
}
DIFFERENCES = "eomt_dinov3"  # the authors publish files with these names of the trunk as differences to DINOv3's


def is_whole(keys: Iterable[str]) -> bool:
    """Whether these are the keys of a mask transformer's file of its authors or of transformers."""
    return _table(keys) is not None


def _table(keys: Iterable[str]) -> dict[str, str | None] | None:
    keys = set(keys)
    if any(re.match(r"network\.(decoder\.)?q\.weight", key) for key in keys):
        return _WHOLE_AUTHORS
    return _WHOLE_TRANSFORMERS if {"query.weight", "class_predictor.weight"} <= keys else None


def split(state: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    """A whole file with the prefixes ``backbone.`` and `head` of mm's models; see `is_whole`.

    Keys that the table does not know stay as they are, and are refused as unexpected.
    """
    table, named = _table(state), {}
    for key, value in state.items():
        found = next(((part, m) for pattern, part in table.items() if (m := re.fullmatch(pattern, key))), None)
        if found is None:
            named[key] = value
        elif found[0] is not None:
            named[(head if found[0] == "head." else found[0]) + found[1]["tail"]] = value
    return named
