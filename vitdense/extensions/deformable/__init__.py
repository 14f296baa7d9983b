"""Programs of DINO and of Mask2Former's pixel decoder, whose deformable attention has sizes in tensors."""

from vitdense.seams import Extension

EXTENSION = Extension(options={"export": "vitdense.extensions.deformable.options"})
