"""Teachers: trained models that give targets, and the base of models that train with one."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from vitdense.checkpoint.read import read
from vitdense.families import IMAGENET


class Teacher(nn.Module):
    """A trained model in eval mode, without gradients, on images of its own size and statistics.

    A teacher never changes and may be large, so deep copies, also of a model that trains with it, share it. It takes
    the device and the dtype of the images.

    Args:
        model: A name of timm, whose pretrained weights are loaded; the config of a model, such as a `Classifier`; or a
            module.
        image_size: Side in pixels to which images are resized (bicubic); None leaves their size.
        mean, std: Statistics of RGB images with values in [0, 1]. A model of timm has its own.
    """

    def __init__(
        self,
        model: str | Mapping | nn.Module,
        image_size: int | None = None,
        mean: Sequence[float] = IMAGENET[0],
        std: Sequence[float] = IMAGENET[1],
    ) -> None:
        super().__init__()
        self.timm = model if isinstance(model, str) else None
        if self.timm is not None:
            import timm

            model = timm.create_model(model)
            mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
        self.model = _built(model).eval().requires_grad_(False)
        self.image_size = image_size
        _register_statistics(self, mean, std)

    def __deepcopy__(self, memo: dict) -> "Teacher":
        return self

    def init_weights(self) -> None:
        """Load the weights; one process per node downloads them."""
        if self.timm is not None:
            self.model.load_state_dict(read(f"timm://{self.timm}")["state_dict"])
        elif hasattr(self.model, "init_weights"):
            self.model.init_weights()

    @torch.no_grad()
    def forward(self, images: Tensor, size: tuple[int, int] | None = None) -> Tensor | tuple[Tensor, ...]:
        """The output of the model for RGB images ``[B, 3, H, W]`` with values in [0, 1].

        `size` (h, w) in pixels overrides `image_size`.
        """
        if size is None and self.image_size is not None:
            size = (self.image_size, self.image_size)
        if size is not None and size != images.shape[-2:]:
            images = F.interpolate(images, size, mode="bicubic", antialias=True)  # [B, 3, h, w]
        if (self.mean.device, self.mean.dtype) != (images.device, images.dtype):
            self.to(images)
        return self.model((images - self.mean) / self.std)


def _built(model: Mapping | nn.Module) -> nn.Module:
    return model if isinstance(model, nn.Module) else MODELS.build(model)


def _register_statistics(module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
    for name, value in (("mean", mean), ("std", std)):
        module.register_buffer(name, torch.tensor(value)[:, None, None], persistent=False)  # [3, 1, 1]


class ModelWithTeacher(BaseModel):
    """A backbone that may train with a teacher.

    `teacher` is a `Teacher` or None. It is not a submodule: it is in no checkpoint and no optimiser, and `train()`
    leaves it in eval mode. Deep copies of the model, such as an average of its weights, share it.

    Args:
        mean, std: Statistics by which the model's images were normalised, for RGB values in [0, 1].
        data_preprocessor: Stacks the images of a batch by default.
    """

    def __init__(
        self,
        backbone: Mapping | nn.Module,
        teacher: Teacher | Mapping | None = None,
        mean: Sequence[float] = IMAGENET[0],
        std: Sequence[float] = IMAGENET[1],
        data_preprocessor: Mapping | nn.Module | None = None,
        init_cfg: Mapping | None = None,
    ) -> None:
        super().__init__(data_preprocessor or {"type": "mmengine.ImgDataPreprocessor"}, init_cfg)
        if teacher is not None and not isinstance(teacher, Teacher):
            teacher = Teacher(**teacher)
        object.__setattr__(self, "teacher", teacher)  # not as a submodule
        _register_statistics(self, mean, std)
        self.backbone = _built(backbone)

    def init_weights(self) -> None:
        """Initialise the model, and load the teacher's weights."""
        super().init_weights()
        if self.teacher is not None:
            self.teacher.init_weights()

    def raw(self, images: Tensor) -> Tensor:
        """Undo the normalisation of images ``[B, 3, H, W]``: values in [0, 1]."""
        return images * self.std + self.mean
