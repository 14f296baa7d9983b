"""What needs mmengine, mmcv, mmdet or mmseg: registries, heads, data, training, configs, checks and commands.

Importing this package alone needs none of them.
"""
