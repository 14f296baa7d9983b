"""The ops of the stand-in for `mmcv._ext`, by name."""

from collections.abc import Callable

from vitdense.mm.ops import boxes, deformable, losses, roi


def get_compiler_version() -> str:
    """Compiler of the ops in mmcv's environment report."""
    return "n/a (stand-in of vitdense)"


def get_compiling_cuda_version() -> str:
    """CUDA version of the ops in mmcv's environment report."""
    return get_compiler_version()


OPS: dict[str, Callable] = {
    op.__name__: op
    for op in (
        *(get_compiler_version, get_compiling_cuda_version),
        *(boxes.nms, boxes.softnms, boxes.nms_match),
        *(roi.roi_align_forward, roi.roi_align_backward),
        *(losses.sigmoid_focal_loss_forward, losses.sigmoid_focal_loss_backward),
        *(deformable.deform_conv_forward, deformable.deform_conv_backward_input),
        deformable.deform_conv_backward_parameters,
        *(deformable.modulated_deform_conv_forward, deformable.modulated_deform_conv_backward),
        *(deformable.ms_deform_attn_forward, deformable.ms_deform_attn_backward),
    )
}
