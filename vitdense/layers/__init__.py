"""Building blocks: torch and timm only; nothing here knows of stages, images or checkpoints."""
