"""Which family of architectures is for training, which to choose by, which to test on: a fixed table.

REGAL keeps its three sets of graphs disjoint by topology (section 4.1). Models of one family share their blocks, so
here whole families stay together: what is tested on has blocks that no training graph has. A model that contains
another family's (a detector on a ResNet) belongs to that family.
"""

from typing import Literal

Split = Literal["train", "valid", "test"]

SPLITS: dict[str, Split] = {
    "bert": "train",
    "densenet": "train",
    "gpt": "train",
    "llama": "train",
    "mobilenet": "train",
    "recurrent": "train",
    "resnet": "train",
    "vgg": "train",
    "vit": "train",
    "bart": "valid",
    "convnext": "valid",
    "efficientnet": "valid",
    "segformer": "valid",
    "t5": "valid",
    "xlnet": "valid",
    "cspnet": "test",
    "deberta": "test",
    "diffusion": "test",
    "fnet": "test",
    "inception": "test",
    "mixer": "test",
    "nasnet": "test",
    "rwkv": "test",
    "swin": "test",
    "unet": "test",
    "whisper": "test",
}
