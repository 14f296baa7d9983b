"""Make the golden files of transformers' EoMT, on random weights at two grids: tests/data/golden/eomt_transformers_*.

transformers 5 cannot be imported next to mmpretrain, so it is in a folder of its own:

    pip install --no-deps --target /tmp/peer transformers==5.24.0 tokenizers==0.23.3 typer==0.29.2 shellingham \
        annotated-doc
    PYTHONPATH=/tmp/peer python scripts/golden_eomt.py tests/data/golden
"""

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "num_blocks": 2, "num_queries": 5}
OTHERS = {"num_labels": 3, "patch_size": 8, "num_upscale_blocks": 1, "image_size": 64}
KINDS = {
    "dinov2": ("Eomt", {"mlp_ratio": 2}),
    "dinov3": ("EomtDinov3", {"intermediate_size": 48, "layer_norm_eps": 1e-5, "pos_embed_rescale": None}),
}
GRIDS = ((8, 8), (6, 10))  # patches


def set_grid(model: nn.Module, grid: tuple[int, int], has_positions: bool) -> None:
    """transformers knows square maps of one size alone."""
    model.grid_size = grid
    if has_positions:
        number = grid[0] * grid[1]
        positions = nn.Embedding.from_pretrained(torch.randn(number, SIZES["hidden_size"]) * 0.1)
        model.embeddings.position_embeddings = positions
        model.embeddings.position_ids = torch.arange(number)[None]


@torch.no_grad()
def make(kind: str) -> dict[str, torch.Tensor]:
    """Weights, inputs and outputs."""
    name, options = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**SIZES, **OTHERS, **options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForUniversalSegmentation")(config)
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.2)
    tensors = {f"weight/{key}": x.clone() for key, x in model.state_dict().items()}
    for grid in GRIDS:
        at = f"{grid[0]}x{grid[1]}"
        set_grid(model, grid, kind == "dinov2")
        if kind == "dinov2":
            tensors[f"position/{at}"] = model.embeddings.position_embeddings.weight.clone()
        image = tensors[f"input/{at}"] = torch.randn(1, 3, *(8 * n for n in grid))
        for training in (False, True):  # with masked attention
            model.train(training)
            model.attn_mask_probs.fill_(1.0 if training else 0.0)  # in eval mode a mask where it is above 0
            out, mode = model(image), "masked" if training else "plain"
            tensors[f"output/{at}/{mode}/mask"] = out.masks_queries_logits
            tensors[f"output/{at}/{mode}/class"] = out.class_queries_logits
    return {key: x.contiguous() for key, x in tensors.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for kind in KINDS:
        save_file(make(kind), folder / f"eomt_transformers_{kind}.safetensors")
