"""Backbones for dense prediction on torch alone: a folder per family."""

# Class: folder.
FAMILIES = {
    "Swin": "swin",
    "SwinV2": "swin_v2",
    "MViT": "mvit",
    "ViT": "vit",
    "ViTAdapter": "vit_adapter",
    "NAT": "nat",
    "ResNet": "resnet",
}
