"""Heads that recipes need and mm does not have: `detection` for mmdet, `segmentation` for mmseg."""
