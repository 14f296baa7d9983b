"""Data sets; the modules that need mmdet or mmseg are imported only when they are asked for."""
