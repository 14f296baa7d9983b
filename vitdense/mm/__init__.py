"""All code that needs mmengine, mmcv, mmdet or mmseg: registries, heads, data, training, configs, checks, commands.

Importing this package alone needs none of them.
"""
