"""Sizes of Swin-Mixer and its published weights."""

from vitdense.families import RELEASES, Model
from vitdense.models.swin.sizes import SwinArch

# Swin Table 6 and the authors' configs/swinmlp. D is the channels per head; base has 32, though the paper calls it D24.
SWIN_MIXER = {
    "tiny_d24": SwinArch(96, (2, 2, 6, 2), (4, 8, 16, 32)),
    "tiny_d12": SwinArch(96, (2, 2, 6, 2), (8, 16, 32, 64)),
    "tiny_d6": SwinArch(96, (2, 2, 6, 2), (16, 32, 64, 128)),
    "base": SwinArch(128, (2, 2, 18, 2), (4, 8, 16, 32)),
}


def rows() -> list[Model]:
    """The authors' releases."""
    release = f"{RELEASES}/v1.0.5/swin_mlp"
    rows = []
    for size, file, window, image in (
        *((f"tiny_d{d}", f"tiny_c{d}_patch4_window8_256", 8, 256) for d in (24, 12, 6)),
        ("base", "base_patch4_window7_224", 7, 224),
    ):
        model, options = f"swin_mixer_{size}", {"window_size": window}
        rows.append(Model(f"{model}.ms_in1k", model, "SwinMixer", size, f"{release}_{file}.pth", "MIT", image, options))
    return rows
