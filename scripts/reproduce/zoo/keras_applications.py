"""Image classifiers of `keras.applications`, with their heads, at the sizes that they were published with."""

import functools
from typing import Any

from reproduce.zoo.architecture import Architecture, image

# name: class, family, pixels
_CLASSES = {
    "vgg16": ("VGG16", "vgg", 224),
    "vgg19": ("VGG19", "vgg", 224),
    "resnet50": ("ResNet50", "resnet", 224),
    "resnet101": ("ResNet101", "resnet", 224),
    "resnet152": ("ResNet152", "resnet", 224),
    "resnet50v2": ("ResNet50V2", "resnet", 224),
    "resnet101v2": ("ResNet101V2", "resnet", 224),
    "densenet121": ("DenseNet121", "densenet", 224),
    "densenet169": ("DenseNet169", "densenet", 224),
    "densenet201": ("DenseNet201", "densenet", 224),
    "mobilenet": ("MobileNet", "mobilenet", 224),
    "mobilenetv2": ("MobileNetV2", "mobilenet", 224),
    "mobilenetv3small": ("MobileNetV3Small", "mobilenet", 224),
    "mobilenetv3large": ("MobileNetV3Large", "mobilenet", 224),
    "efficientnetb0": ("EfficientNetB0", "efficientnet", 224),
    "efficientnetb3": ("EfficientNetB3", "efficientnet", 300),
    "efficientnetb7": ("EfficientNetB7", "efficientnet", 600),
    "efficientnetv2b0": ("EfficientNetV2B0", "efficientnet", 224),
    "efficientnetv2s": ("EfficientNetV2S", "efficientnet", 384),
    "convnexttiny": ("ConvNeXtTiny", "convnext", 224),
    "convnextbase": ("ConvNeXtBase", "convnext", 224),
    "inceptionv3": ("InceptionV3", "inception", 299),
    "inceptionresnetv2": ("InceptionResNetV2", "inception", 299),
    "xception": ("Xception", "inception", 299),
    "nasnetmobile": ("NASNetMobile", "nasnet", 224),
    "nasnetlarge": ("NASNetLarge", "nasnet", 331),
}


def _build(name: str) -> Any:
    import keras

    return getattr(keras.applications, name)(weights=None)


ARCHITECTURES = [
    Architecture(name, family, functools.partial(_build, cls), image(size))
    for name, (cls, family, size) in _CLASSES.items()
]
