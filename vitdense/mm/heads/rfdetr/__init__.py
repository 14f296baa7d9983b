"""RF-DETR: a light DETR on one map of a plain ViT."""
