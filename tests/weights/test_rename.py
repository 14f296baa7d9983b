import pytest
import torch

from vitdense.weights.rename import CheckpointMismatchError, Rule, rename
from vitdense.weights.sources import SCHEMES, from_unfold

RULES = (
    Rule("layers.#.blocks.#.norm.*", "stages.#.b.#.norm.*"),
    Rule("head.*", None),
    Rule("scale", "scale", lambda x: 2 * x),
)


def test_indices_and_tails_are_carried_over_and_tensors_changed():
    one = torch.ones(1)
    state = {"layers.2.blocks.11.norm.weight": one, "head.fc.bias": one, "scale": one}
    renamed, dropped = rename(state, RULES)
    assert renamed == {"stages.2.b.11.norm.weight": one, "scale": 2 * one}
    assert dropped == ["head.fc.bias"]


@pytest.mark.parametrize("key", ["layers.x.blocks.0.norm.weight", "layers.0.blocks.0.norm.", "xhead.w", "scales"])
def test_a_key_no_rule_knows_is_an_error_that_lists_it(key):
    with pytest.raises(CheckpointMismatchError, match=key):
        rename({"scale": torch.ones(1), key: torch.ones(1)}, RULES)


def test_two_keys_of_one_meaning_are_an_error():
    rules = (Rule("a", "c"), Rule("b", "c"))
    with pytest.raises(CheckpointMismatchError, match="both mean c"):
        rename({"a": torch.ones(1), "b": torch.ones(1)}, rules)


def test_unfold_order_against_unfold_itself():
    """A merging that concatenates what nn.Unfold yields equals the authors' on the reordered weight, also H != W."""
    c, x = 3, torch.randn(1, 3, 4, 6)
    weight = torch.randn(5, 4 * c)
    theirs = torch.nn.functional.unfold(x, kernel_size=2, stride=2).transpose(1, 2) @ weight.T  # [1, 6, 5]
    blocks = [x[:, :, r::2, s::2] for r, s in ((0, 0), (1, 0), (0, 1), (1, 1))]
    ours = torch.cat(blocks, 1).flatten(2).transpose(1, 2) @ from_unfold(weight).T
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(from_unfold(weight[0]), from_unfold(weight)[0])  # norms too


def test_no_two_rules_of_a_scheme_match_one_key():
    """`find_rule` asserts it; here every pattern of every table is tried on a key made from it."""
    for schemes in SCHEMES.values():
        for scheme in schemes:
            state = {
                rule.source.replace("#", "0").replace("*", "weight"): torch.ones(1, 2, 2, 4) for rule in scheme.rules
            }
            assert len(state) == len(scheme.rules)
            renamed, dropped = rename(state, scheme.rules)
            assert len(renamed) + len(dropped) == len(state)
