"""Building blocks on torch and timm, independent of stages, images and checkpoints."""
