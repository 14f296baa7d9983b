"""The model table: every model by name, where its weights come from, and what they expect.

A name is ``<model>`` or ``<model>.<weights>``: ``swin_tiny.ms_in1k``. A model alone means its first row.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitdense.backbones.variants import VIT

if TYPE_CHECKING:
    from vitdense.backbones.base import Backbone

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SATELLITE = ((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RELEASES = "https://github.com/SwinTransformer/storage/releases/download"


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        name: ``<model>.<weights>``; the model alone where no weights were published.
        model: The part of the name that says what is built, such as ``swin_tiny``.
        family: Class in `vitdense.backbones`.
        arch: Its `arch`, a row of `vitdense.backbones.variants`.
        weights: Address of the weights (see `vitdense.weights.read.read`), or None.
        licence: Of the weights.
        image_size: Of pretraining, in pixels, square.
        options: Constructor arguments that the weights need, such as `window_size` in tokens.
        mean: Of RGB images with values in [0, 1].
        std: Likewise.
        sha256: Digest of the file, where it is known. (Names of torchvision's files hold theirs.)
        gate: Page on which the authors ask for consent to the licence before they give their files; None for none.
    """

    name: str
    model: str
    family: str
    arch: str
    weights: str | None = None
    licence: str | None = None
    image_size: int = 224
    options: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, float, float] = IMAGENET[0]
    std: tuple[float, float, float] = IMAGENET[1]
    sha256: str | None = None
    gate: str | None = None

    @property
    def patch_size(self) -> int | None:
        """Side of a patch of a ViT in pixels, to whose multiples images are padded; None for other families."""
        return self.options.get("patch_size", VIT[self.arch].patch_size) if self.family == "ViT" else None


def _swin() -> list[Model]:
    """The authors' releases, as timm hosts them (MIT), or as the authors do ("official"), and torchvision's own
    trainings."""

    def row(size: str, image: int, data: str, window: int) -> Model:
        of_image = f"_{image}" * (image != 224)
        weights = f"timm://swin_{size}_patch4_window{window}_{image}.{data}"
        name = f"swin_{size}{of_image}.{data}"
        return Model(name, f"swin_{size}", "Swin", size, weights, "MIT", image, {"window_size": window})

    rows = [row(size, 224, "ms_in1k", 7) for size in ("tiny", "small", "base")]
    rows += [row(size, 224, "ms_in22k", 7) for size in ("tiny", "small", "base", "large")]
    rows += [row(size, 384, "ms_in22k", 12) for size in ("base", "large")]
    for size in ("tiny", "small", "base"):
        weights = f"torchvision://swin_{size[0]}"
        model = f"swin_{size}"
        rows.append(Model(f"{model}.tv_in1k", model, "Swin", size, weights, "BSD-3-Clause", 224, {"window_size": 7}))
        weights = f"{RELEASES}/v1.0.0/swin_{size}_patch4_window7_224.pth"
        rows.append(Model(f"{model}.official_in1k", model, "Swin", size, weights, "MIT", 224, {"window_size": 7}))
    return rows


def _swin_v2() -> list[Model]:
    """As Swin. In the last stage the map in pretraining was the window, where it was smaller."""

    def row(size: str, window: int, data: str, image: int, weights: str, licence: str = "MIT") -> Model:
        trained = (window, window, window, min(window, image // 32))
        options = {"window_size": window, "pretrained_window_sizes": trained}
        name = f"swinv2_{size}_w{window}.{data}"
        return Model(name, f"swinv2_{size}", "SwinV2", size, weights, licence, image, options)

    rows = [
        row(size, window, data, image, f"timm://swinv2_{size}_window{window}_{image}.{data}")
        for sizes, window, data, image in (
            (("tiny", "small", "base"), 8, "ms_in1k", 256),
            (("tiny", "small", "base"), 16, "ms_in1k", 256),
            (("base", "large"), 12, "ms_in22k", 192),
        )
        for size in sizes
    ]
    for size in ("tiny", "small", "base"):
        rows.append(row(size, 8, "tv_in1k", 256, f"torchvision://swin_v2_{size[0]}", "BSD-3-Clause"))
    for window in (8, 16):
        weights = f"{RELEASES}/v2.0.0/swinv2_tiny_patch4_window{window}_256.pth"
        rows.append(row("tiny", window, "official_in1k", 256, weights))
    # Never released: the names build the models without weights.
    return [*rows, *(Model(f"swinv2_{size}", f"swinv2_{size}", "SwinV2", size) for size in ("huge", "giant"))]


def _mvit() -> list[Model]:
    """The authors' releases, as timm hosts them. ImageNet-1K, or the winter 2021 release of 21K, whose models have a
    class token, which dense prediction ignores."""

    def row(size: str, data: str, timm: str, arch: str | None = None) -> Model:
        model = f"mvitv2_{size}"
        return Model(f"{model}.{data}", model, "MViT", arch or f"v2_{size}", f"timm://{timm}.{data}", "Apache-2.0")

    return [
        *(row(size, "fb_in1k", f"mvitv2_{size}") for size in ("tiny", "small", "base")),
        *(row(size, "fb_inw21k", f"mvitv2_{size}_cls") for size in ("base", "large", "huge")),
        row("large", "fb_in1k", "mvitv2_large", "v2_large_in1k"),
        # Released by the authors on a page that programs cannot fetch from: give the file.
        *(Model(f"mvit{arch}", f"mvit{arch}", "MViT", arch) for arch in ("v1_base", "v1_base_max")),
    ]


def _timm_vit(
    model: str,
    data: str,
    image: int = 224,
    patch: str = "",
    arch: str | None = None,
    licence: str = "Apache-2.0",
    stats: tuple = IMAGENET,
    **options: Any,
) -> Model:
    """A ViT whose weights timm hosts, as ``<model><patch>_<image>.<data>``. Its arch is `model` unless given."""
    name = f"{model}{f'_{image}' * (image != 224)}.{data}"
    weights = f"timm://{model}{patch}_{image}.{data}"
    options["pretrain_img_size"] = image
    return Model(name, model, "ViT", arch or model, weights, licence, image, options, *stats)


def _vit() -> list[Model]:
    """The authors' releases: DeiT, DeiT III, "How to train your ViT?", MAE's pretraining; CaiT and hybrids."""

    def row(model: str, data: str, image: int = 224, **others: Any) -> Model:
        return _timm_vit(model, data, image, "_patch14" if model.endswith("huge") else "_patch16", **others)

    rows = [row(f"deit_{size}", "fb_in1k") for size in ("tiny", "small", "base")]
    rows += [row(f"deit_{size}_distilled", "fb_in1k") for size in ("tiny", "small", "base")]
    rows += [row(model, "fb_in1k", 384) for model in ("deit_base", "deit_base_distilled")]
    for image, sizes in ((224, ("small", "medium", "base", "large", "huge")), (384, ("small", "base", "large"))):
        for size in sizes:
            rows += [row(f"deit3_{size}", data, image) for data in ("fb_in1k", "fb_in22k_ft_in1k")]
    for data, image, sizes in (
        ("augreg_in21k", 224, ("tiny", "small", "base", "large")),
        ("augreg_in21k_ft_in1k", 224, ("tiny", "small", "base", "large")),
        ("augreg_in21k_ft_in1k", 384, ("tiny", "small", "base", "large")),
        ("augreg_in1k", 224, ("small", "base")),
    ):
        rows += [row(f"vit_{size}", data, image, stats=HALF) for size in sizes]
    rows += [row(f"vit_{size}", "mae", licence="CC-BY-NC-4.0") for size in ("base", "large", "huge")]
    # CaiT, distilled on ImageNet-1K.
    for image, sizes in ((224, ("xxs24", "xxs36", "s24")), (384, ("xxs24", "xxs36", "xs24", "s24", "s36", "m36"))):
        rows += [_timm_vit(f"cait_{size}", "fb_dist_in1k", image) for size in sizes]
    rows.append(_timm_vit("cait_m48", "fb_dist_in1k", 448))
    # Hybrids, on a ResNet: of ViT, and of "How to train your ViT?".
    for size, stem, data, image in (
        ("base", "r50_s16", "orig_in21k", 224),
        ("base", "r50_s16", "orig_in21k_ft_in1k", 384),
        *(
            (size, stem, *weights)
            for size, stem in (("small", "r26_s32"), ("large", "r50_s32"))
            for weights in (("augreg_in21k", 224), ("augreg_in21k_ft_in1k", 224), ("augreg_in21k_ft_in1k", 384))
        ),
    ):
        options = {"arch": f"vit_{size}", "stats": HALF, "stem": stem, "patch_size": int(stem[-2:])}
        rows.append(_timm_vit(f"vit_{size}_{stem}", data, image, **options))
    return rows


def _foundation() -> list[Model]:
    """DINOv2 as its authors host it; the others as timm does. LingBot-Vision has DINOv3's architecture.

    timm's files of DINOv3 have biases of queries and values (``_qkvb``), as the authors' but that of 7B, and no rounded
    periods.
    """
    rows = []
    for registers in ("", "_reg"):
        for size in ("small", "base", "large", "giant"):
            model, file = f"dinov2_{size}{registers}", f"dinov2_vit{size[0]}14"
            url = f"https://dl.fbaipublicfiles.com/dinov2/{file}/{file}{registers and '_reg4'}_pretrain.pth"
            options = {"pretrain_img_size": 518, "out_norm": "shared"}
            rows.append(Model(f"{model}.fb_lvd142m", model, "ViT", model, url, "Apache-2.0", 518, options))
    shared = {"out_norm": "shared"}
    gate = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"
    for data, stats, sizes in (
        ("lvd1689m", IMAGENET, ("small", "small_plus", "base", "large", "huge_plus", "7b")),
        ("sat493m", SATELLITE, ("large", "7b")),
    ):
        for size in sizes:
            model, biases = f"dinov3_{size}", "_qkvb" * (size != "7b")
            weights = f"timm://vit_{size}_patch16_dinov3{biases}.{data}"
            details = (weights, "DINOv3-License", 256, shared, *stats, None, gate)
            rows.append(Model(f"{model}.fb_{data}", model, "ViT", model, *details))
    rows.append(Model("dinov3_large_plus", "dinov3_large_plus", "ViT", "dinov3_large_plus", options=shared))  # no file
    for size in ("small", "base", "large", "giant"):
        model, arch = f"lingbot_{size}", "lingbot_giant" if size == "giant" else f"dinov3_{size}"
        weights = f"timm://vit_{size}_patch16_lingbot.robbyant"
        rows.append(Model(f"{model}.robbyant", model, "ViT", arch, weights, "Apache-2.0", 512, shared))
    for size in ("tiny", "small", "base", "large", "giant"):
        model = f"pe_spatial_{size}"
        patch, image = VIT[model].patch_size, 32 * VIT[model].patch_size
        options = {"pretrain_img_size": image}
        weights = f"timm://vit_pe_spatial_{size.replace('giant', 'gigantic')}_patch{patch}_{image}.fb"
        rows.append(Model(f"{model}.fb", model, "ViT", model, weights, "Apache-2.0", image, options, *HALF))
    for size, image in (("base", 512), ("base", 224), ("large", 512), ("so400m", 512)):
        model, options = f"siglip2_{size}", {"pretrain_img_size": image, "out_norm": "shared"}
        file = f"vit_{size}_patch16_siglip_{image}.v2_webli"
        # timm's model of this size has the exact GELU, the authors' has not.
        weights = f"hf://timm/{file}/model.safetensors" if size == "base" else f"timm://{file}"
        name = f"{model}{f'_{image}' * (image != 512)}.webli"
        rows.append(Model(name, model, "ViT", model, weights, "Apache-2.0", image, options, *HALF))
    for size, image, data in (
        *((size, 224, "mim_in22k") for size in ("tiny", "small", "base", "large")),
        *((size, 336, "mim_in22k_ft_in1k") for size in ("tiny", "small")),
        *((size, 448, "mim_in22k_ft_in22k_in1k") for size in ("base", "large")),
        *(("large", 224, "mim_m38m"), ("large", 448, "mim_m38m_ft_in22k_in1k")),
    ):
        rows.append(_timm_vit(f"eva02_{size}", data, image, "_patch14", licence="MIT", stats=CLIP))
    return rows


def _mixers() -> list[Model]:
    """Swin-Mixer as its authors host it; MLP-Mixer, ResMLP and gMLP as timm hosts them: Google's, converted from flax,
    Alibaba's ("miil"), the ResMLP authors', and timm's own gMLP."""
    release = f"{RELEASES}/v1.0.5/swin_mlp"
    rows = []
    for size, file, window, image in (
        *((f"tiny_d{d}", f"tiny_c{d}_patch4_window8_256", 8, 256) for d in (24, 12, 6)),
        ("base", "base_patch4_window7_224", 7, 224),
    ):
        model, options = f"swin_mixer_{size}", {"window_size": window}
        rows.append(Model(f"{model}.ms_in1k", model, "SwinMixer", size, f"{release}_{file}.pth", "MIT", image, options))
    for model, timm, stats, data in (
        ("mixer_base_16", "mixer_b16_224", HALF, ("goog_in21k", "goog_in21k_ft_in1k")),
        ("mixer_base_16", "mixer_b16_224", UNIT, ("miil_in21k", "miil_in21k_ft_in1k")),
        ("mixer_large_16", "mixer_l16_224", HALF, ("goog_in21k", "goog_in21k_ft_in1k")),
        ("resmlp_small_12", "resmlp_12_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
        ("resmlp_small_24", "resmlp_24_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
        ("resmlp_small_36", "resmlp_36_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k")),
        ("resmlp_base_24", "resmlp_big_24_224", IMAGENET, ("fb_in1k", "fb_distilled_in1k", "fb_in22k_ft_in1k")),
        ("gmlp_small", "gmlp_s16_224", HALF, ("ra3_in1k",)),
    ):
        for name in data:
            weights = f"timm://{timm}.{name}"
            rows.append(Model(f"{model}.{name}", model, "Mixer", model, weights, "Apache-2.0", 224, {}, *stats))
    # Never released, or not for torch.
    mixers = (f"mixer_{size}" for size in ("small_32", "small_16", "base_32", "large_32", "huge_14"))
    return [*rows, *(Model(model, model, "Mixer", model) for model in (*mixers, "gmlp_tiny", "gmlp_base"))]


def _nat() -> list[Model]:
    """The authors' releases."""
    address = "https://shi-labs.com/projects/nat/checkpoints/CLS/nat_{}.pth"
    return [
        Model(f"nat_{size}.shi_in1k", f"nat_{size}", "NAT", size, address.format(size), "MIT")
        for size in ("mini", "tiny", "small", "base")
    ]


def _resnet() -> list[Model]:
    """torchvision's trainings: V1, with which the baselines of mmdet start, and the longer V2. Those of "Stand-alone
    self-attention" were never released."""
    rows = [
        Model(f"{model}.{data}", model, "ResNet", model, f"torchvision://{model}.{version}", "BSD-3-Clause")
        for data, version, depths in (
            ("tv_in1k", "IMAGENET1K_V1", (18, 34, 50, 101, 152)),
            ("tv2_in1k", "IMAGENET1K_V2", (50, 101, 152)),
        )
        for model in (f"resnet{depth}" for depth in depths)
    ]
    return [*rows, *(Model(model, model, "ResNet", model) for model in ("sasa26", "sasa38", "sasa50"))]


TABLES = (_swin, _swin_v2, _mvit, _vit, _foundation, _mixers, _nat, _resnet)
MODELS: dict[str, Model] = {row.name: row for table in TABLES for row in table()}
# Models without the weights' name: the first row of each.
DEFAULTS: dict[str, Model] = {row.model: row for row in reversed(MODELS.values())}
# Names of version 0.1, sizes by their first letter: swin_t.ms_in1k.
SHORT: dict[str, Model] = {
    short: row
    for name, row in MODELS.items()
    if row.weights and row.family in ("Swin", "SwinV2", "MViT", "ViT")
    if (short := re.sub(r"_(tiny|small|medium|base|large|huge)", lambda size: size[0][:2], name, count=1)) != name
}


def find_model(name: str) -> Model | None:
    """The row of a name, or None. ``swin_tiny`` is the first of its rows; ``swin_t.ms_in1k`` is short for
    ``swin_tiny.ms_in1k``."""
    return MODELS.get(name) or DEFAULTS.get(name) or SHORT.get(name)


def row_of(checkpoint: str) -> Model | None:
    """The row with these weights, by its name or its address, or None."""
    return find_model(checkpoint) or next((row for row in MODELS.values() if row.weights == checkpoint), None)


def gated_row(address: str) -> Model | None:
    """The row of weights behind a gate, by timm's address or by the authors' names of DINOv3's files, or None."""
    row = row_of(re.sub(r"^hf://timm/([^/@]+).*", r"timm://\1", address))
    found = re.search(r"dinov3[-_]vit(s|b|l|h|7b)16(plus)?[-_]pretrain[-_](lvd1689m|sat493m)", address)
    if row is None and found:
        size, plus, data = found.groups()
        size = {"s": "small", "b": "base", "l": "large", "h": "huge"}.get(size, size) + ("_plus" if plus else "")
        row = find_model(f"dinov3_{size}.fb_{data}")
    return row if row and row.gate else None


def ungated_twin(row: Model) -> Model | None:
    """A row of the same arch whose weights need no consent, or None."""
    same = [other for other in MODELS.values() if (other.family, other.arch) == (row.family, row.arch)]
    return next((other for other in same if other.weights and not other.gate), None)


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern such as ``'swin*'`` or ``'*.ms_in22k'``, in the order of the table."""
    return [name for name, row in MODELS.items() if fnmatchcase(name, pattern) or fnmatchcase(row.model, pattern)]


def near_names(name: str) -> list[str]:
    """Names of the table that look like `name`, for error messages."""
    return difflib.get_close_matches(name, dict.fromkeys([*DEFAULTS, *MODELS, *SHORT]), n=5)


def create(
    name: str,
    pretrained: bool | str | Path = False,
    out_indices: Sequence[int] | None = None,
    **options: Any,
) -> "Backbone":
    """Build a backbone by name: a plain `torch.nn.Module`, in eval mode, its weights loaded.

    It maps images ``[B, 3, H, W]`` of any size, RGB, normalised by ``model.cfg.mean`` and ``model.cfg.std``, to a tuple
    of maps ``[B, C_i, H_i, W_i]``; `out_channels` and `out_strides` tell their channels and strides.

    Args:
        name: Of the table, see `list_models`.
        pretrained: True for the weights of the row, False for random ones; or a file, an address or another name, in
            any naming scheme that is known. They load exactly or raise.
        out_indices: Stages (of a ViT: blocks) to return; None for the class's default.
        **options: Other arguments of the class, such as ``drop_path_rate=0.1`` or ``frozen_stages=2``.

    Returns:
        The backbone. Its `cfg` is the `Model` row.

    Raises:
        ValueError: The name is not in the table, the row has no weights, or an option has an unknown value.
        TypeError: The class has no such option.
        CheckpointNotFoundError: The weights cannot be found or fetched.
        CheckpointMismatchError: They are not, key by key, those of this model.
    """
    row = find_model(name)
    if row is None:
        near = near_names(name)
        hint = f"did you mean {', '.join(near)}?" if near else "vitdense.list_models() lists them"
        raise ValueError(f"create: got {name!r}, which is no model; {hint}")
    checkpoint = row.weights if pretrained is True else pretrained
    if pretrained is True and checkpoint is None:
        having = [other for other in MODELS.values() if other.family == row.family and other.weights]
        raise ValueError(
            f"create: got pretrained=True, but no weights of {name} were published; give a file, or choose one of "
            f"{', '.join(other.name for other in having)}"
        )
    if out_indices is not None:
        options["out_indices"] = out_indices
    model = getattr(import_module("vitdense.backbones"), row.family)(row.arch, **{**row.options, **options})
    if checkpoint:
        sha256 = {"sha256": row.sha256} if pretrained is True and row.sha256 else {}
        model.init_cfg = {"type": "Pretrained", "checkpoint": checkpoint, **sha256}
        model.init_weights()
    model.cfg = row
    return model.eval()
