"""`vitdense benchmark --deploy`: what is timed, and that forms which compute something else are refused."""

import pytest
import torch
from torch import nn

import deploy
import measuring
from deploy import Form, speeds, table, time_forms

pytestmark = pytest.mark.skipif(not deploy.has_onednn(), reason="needs torch with MKL and oneDNN")


def model(name, calls):
    layer = nn.Linear(4, 3).eval()

    def run(x):
        calls.append((name, torch.is_grad_enabled()))
        return [layer(x)]

    return layer, run


def test_every_form_of_every_model_is_timed_in_each_round(tmp_path, monkeypatch):
    calls = []
    found = [Form("eager", deploy._eager), Form("other", deploy._eager, context=torch.no_grad)]
    monkeypatch.setattr(deploy, "forms", lambda: found)
    seconds = time_forms({name: model(name, calls) for name in ("ours", "theirs")}, torch.ones(2, 4), tmp_path, 2)
    assert {key: len(row) for key, row in seconds.items()} == {
        (form, name): 2 for name in ("ours", "theirs") for form in ("eager", "other")
    }
    assert not any(grad for _, grad in calls)


def test_a_form_with_other_maps_is_refused(tmp_path, monkeypatch):
    found = [Form("wrong", lambda model, run, x, folder: lambda x: [1.001 * run(x)[0]])]
    monkeypatch.setattr(deploy, "forms", lambda: found)
    with pytest.raises(ValueError, match=r"wrong of ours: error 0\.001"):
        time_forms({"ours": model("ours", [])}, torch.ones(2, 4), tmp_path, rounds=1)


def test_speeds_are_medians_of_the_ratios_of_rounds():
    seconds = {
        ("eager", "a"): [1.0, 2.0, 4.0],
        ("eager", "b"): [2.0, 2.0, 4.0],
        ("tuned", "a"): [0.5, 1.0, 1.0],
        ("tuned", "b"): [1.0, 1.0, 4.0],
        ("ours alone", "a"): [0.5, 0.5, 0.5],
    }
    rows = speeds(seconds, "a", "b")
    assert list(rows["eager"].values()) == [2, 2, 1, 1]
    assert list(rows["tuned"].values()) == [1, 1, 4, 2]
    assert table(rows).splitlines()[-1] == "| ours alone | 0.50 | - | 4.00 | - |"
    assert table(rows).splitlines()[-2] == "| tuned | 1.00 | 1.00 | 4.00 | 2.00 |"


@pytest.mark.slow
def test_every_form_of_a_small_image(tmp_path):
    """Ours and mmdet's, with their maps compared. Compiling takes minutes."""
    models = measuring.pair("swin_tiny", "mmdet", (64, 96))
    for each, _ in models.values():
        each.eval()
    seconds = time_forms(models, torch.randn(1, 3, 64, 96), tmp_path, rounds=1)
    assert all(row[0] > 0 for row in seconds.values())
