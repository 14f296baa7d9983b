"""Pictures of what a trained model sees: attention, features, receptive fields, position biases."""

from vitdense.seams import Extension

EXTENSION = Extension(commands={"show": ("use", "draw what a trained model sees in an image")})
