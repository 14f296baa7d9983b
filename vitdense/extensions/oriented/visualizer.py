"""mmdet's pictures of oriented boxes: of a validation, of a test, and of the first batch of a training."""

from typing import Any

import numpy as np
import torch
from mmdet.structures.mask import PolygonMasks
from mmdet.visualization import DetLocalVisualizer
from mmengine.structures import InstanceData

from vitdense.mm.registry import VISUALIZERS


@VISUALIZERS.register_module()
class OrientedVisualizer(DetLocalVisualizer):
    """mmdet's visualizer; it draws corners of the truth and of predictions as polygons, not the straight boxes."""

    def _draw_instances(self, image: np.ndarray, instances: InstanceData, *args: Any) -> np.ndarray:
        if len(instances):
            shown = InstanceData(**dict(instances.items()))
            corners = instances.corners if "corners" in instances else instances.bboxes  # of the truth, [N, 8]
            rows = torch.as_tensor(corners).float().flatten(1).cpu().numpy()  # [N, 8]
            shown.masks = PolygonMasks([[row] for row in rows], *image.shape[:2])
            shown.bboxes = torch.zeros(len(instances), 4)  # so names are placed at the polygons
            instances = shown
        return super()._draw_instances(image, instances, *args)
