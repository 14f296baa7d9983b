"""Backbones for dense prediction on torch alone: a folder per family."""

# Class -> folder.
FAMILIES = {
    "Swin": "swin",
    "SwinV2": "swin_v2",
    "MViT": "mvit",
    "ViT": "vit",
    "ViTAdapter": "vit_adapter",
    "ConvNeXt": "convnext",
    "Hiera": "hiera",
}
# Head with naming schemes -> its folder.
HEADS = dict.fromkeys(("eomt", "pmt", "rfdetr_projector", "rfdetr"), "vit")
