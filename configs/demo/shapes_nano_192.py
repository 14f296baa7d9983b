"""What `vitdense demo` trains: new heads on backbone and FPN of shapes_nano, at another window and image size."""

_base_ = "shapes_nano.py"

load_from = "{{ fileDirname }}/shapes_nano.safetensors"
backbone = dict(window_size=6)  # divides the maps of an image of 192 pixels, as 8 does for 256
model = dict(backbone=backbone)
settings = dict(max_iters=350, image_size=192)
drawn = dict(data_root="data/demo/", draw=dict(num_train=800, num_val=100, image_size=(192, 192), seed=1))
train_dataloader = dict(dataset=drawn)
test_dataloader = dict(dataset=drawn)
val_cfg = val_dataloader = val_evaluator = None  # the demo tests what it trained
default_hooks = dict(exact_load=dict(fresh=[r"rpn_head\..*", r"roi_head\..*"]))
custom_hooks = [dict(type="vitdense.ProgressHook")]
