"""Heads that recipes need and mm does not have, of scope ``vitdense``: `detection` for mmdet, `linear` for mmseg."""
