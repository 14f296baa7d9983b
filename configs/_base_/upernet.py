"""UPerNet with an auxiliary head on the map of stride 16 as mmseg ships it, for a Swin of 96 channels on crops of 512
pixels of ADE20K: as the Swin authors train it."""

_base_ = []  # before the import: mmengine reads other configs that import in another way
from vitdense.mm.config.load import shipped

num_classes = 150  # heads with this number follow the data
model = shipped("mmseg::_base_/models/upernet_swin.py").model
model.data_preprocessor.size = (512, 512)  # of a training crop; images to test keep theirs
model.backbone = dict(type="vitdense.Swin", arch="tiny", window_size=7, drop_path_rate=0.3)
model.decode_head.num_classes = model.auxiliary_head.num_classes = num_classes
norm, loss = model.decode_head.norm_cfg, model.decode_head.loss_decode  # for heads of recipes
del model["pretrained"]
