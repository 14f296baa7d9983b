"""The ops that the stand-in for `mmcv._ext` has, by name."""

from collections.abc import Callable

from vitdense.ops import boxes, deformable, losses, roi


def get_compiler_version() -> str:
    """What mmcv's environment report prints for the compiler of its ops."""
    return "n/a (stand-in of vitdense)"


def get_compiling_cuda_version() -> str:
    """What mmcv's environment report prints for the CUDA version of its ops."""
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
