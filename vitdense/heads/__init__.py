"""Heads that recipes need and mm does not have, in the scope ``vitdense``: `detection` for mmdet, `linear` for mmseg."""
