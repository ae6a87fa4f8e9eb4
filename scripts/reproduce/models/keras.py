"""Keras models of the zoo.

keras_hub's models for images, segmentation, detection, speech, diffusion and language (backbones at the sizes of
well-known checkpoints), the classifiers of `keras.applications` with their heads, and recurrent networks, as loops
(`scan`) and unrolled.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from reproduce.models.zoo import LARGE, SMALL, Architecture, floats, hub, image, tokens

_RESNET50 = hub(
    "ResNetBackbone", input_conv_filters=[64], input_conv_kernel_sizes=[7], stackwise_num_filters=[64, 128, 256, 512],
    stackwise_num_blocks=[3, 4, 6, 3], stackwise_num_strides=[1, 2, 2, 2], block_type="bottleneck_block",
    image_shape=(512, 512, 3),
)  # fmt: skip
_VIT: dict[str, Any] = {"image_shape": (224, 224, 3), "patch_size": 16, "num_layers": 12}
_VIT_BASE = hub("ViTBackbone", **_VIT, num_heads=12, hidden_dim=768, mlp_dim=3072)
_DEIT = hub("DeiTBackbone", **_VIT, num_heads=6, hidden_dim=384, intermediate_dim=1536)
_SWIN = hub(
    "SwinTransformerBackbone", image_shape=(224, 224, 3), embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24),
    window_size=7,
)  # fmt: skip
_MIT = hub(
    "MiTBackbone", layerwise_depths=[2, 2, 2, 2], num_layers=4, layerwise_num_heads=[1, 2, 5, 8],
    layerwise_sr_ratios=[8, 4, 2, 1], max_drop_path_rate=0.1, layerwise_patch_sizes=[7, 3, 3, 3],
    layerwise_strides=[4, 2, 2, 2], image_shape=(512, 512, 3), hidden_dims=[32, 64, 160, 256],
)  # fmt: skip
_SEGFORMER = hub("SegFormerBackbone", image_encoder=_MIT, projection_filters=256)
_DEEPLAB = hub(
    "DeepLabV3Backbone", image_encoder=_RESNET50, spatial_pyramid_pooling_key="P4", low_level_feature_key="P2",
    upsampling_size=4, dilation_rates=[6, 12, 18], image_shape=(512, 512, 3),
)  # fmt: skip
_RETINANET = hub(
    "RetinaNetBackbone", image_encoder=_RESNET50, min_level=3, max_level=7, use_p5=False, image_shape=(512, 512, 3)
)
_CSPDARKNET = hub(
    "CSPNetBackbone", stem_filters=32, stem_kernel_size=3, stem_strides=1, stackwise_depth=[1, 2, 8, 8, 4],
    stackwise_strides=[2, 2, 2, 2, 2], stackwise_num_filters=[64, 128, 256, 512, 1024], block_type="dark_block",
    bottle_ratio=[0.5, 1.0], block_ratio=[1.0, 0.5, 0.5, 0.5, 0.5], expand_ratio=[2.0, 1.0], stage_type="csp",
    stem_padding="same", down_growth=True, image_shape=(256, 256, 3),
)  # fmt: skip
_SAM_ENCODER = hub(
    "ViTDetBackbone", hidden_size=768, num_layers=12, intermediate_dim=3072, num_heads=12,
    global_attention_layer_indices=[2, 5, 8, 11], image_shape=(1024, 1024, 3),
)  # fmt: skip
_CLIP = hub(
    "CLIPBackbone",
    vision_encoder=hub(
        "clip.clip_vision_encoder.CLIPVisionEncoder",
        patch_size=32,
        hidden_dim=768,
        num_layers=12,
        num_heads=12,
        intermediate_dim=3072,
        image_shape=(224, 224, 3),
    ),
    text_encoder=hub(
        "clip.clip_text_encoder.CLIPTextEncoder",
        vocabulary_size=49408,
        embedding_dim=512,
        hidden_dim=512,
        num_layers=12,
        num_heads=8,
        intermediate_dim=2048,
    ),
    projection_dim=512,
)
_WHISPER = hub(
    "WhisperBackbone", vocabulary_size=51865, num_layers=4, num_heads=6, hidden_dim=384, intermediate_dim=1536
)
_VAE = hub(
    "vae.vae_backbone.VAEBackbone", encoder_num_filters=[128, 256, 512, 512], encoder_num_blocks=[2, 2, 2, 2],
    decoder_num_filters=[512, 512, 256, 128], decoder_num_blocks=[3, 3, 3, 3],
)  # fmt: skip
_MMDIT = hub(
    "stable_diffusion_3.mmdit.MMDiT", patch_size=2, hidden_dim=1536, num_layers=24, num_heads=24, position_size=192,
    qk_norm=None, dual_attention_indices=None, latent_shape=(64, 64, 16), context_shape=(None, 4096),
    pooled_projection_shape=(2048,),
)  # fmt: skip
_FLUX = hub(
    "FluxBackbone", input_channels=64, hidden_size=3072, mlp_ratio=4.0, num_heads=24, depth=19, depth_single_blocks=38,
    axes_dim=[16, 56, 56], theta=10000, use_bias=True, guidance_embed=True, image_shape=(1024, 64),
    text_shape=(256, 4096), image_ids_shape=(1024, 3), text_ids_shape=(256, 3), y_shape=(768,),
)  # fmt: skip

_MMDIT_INPUTS = {
    "latent": floats(64, 64, 16),
    "context": floats(154, 4096),
    "pooled_projection": floats(2048),
    "timestep": floats(1),
}
_FLUX_INPUTS = {
    "image": floats(1024, 64), "image_ids": floats(1024, 3), "text": floats(256, 4096), "text_ids": floats(256, 3),
    "y": floats(768), "timesteps": floats(), "guidance": floats(),
}  # fmt: skip
_WHISPER_INPUTS = {"encoder_features": floats(3000, 80), **tokens(64, "decoder_token_ids", "decoder_padding_mask")}

# XLA takes minutes to optimise a training step of flux_dev, so it has no HLO graphs.
VISION = [
    Architecture("vit_base", "vit", _VIT_BASE, image(224), **SMALL),
    Architecture("deit_small", "vit", _DEIT, image(224), **SMALL),
    Architecture("sam_vit_b_encoder", "vit", _SAM_ENCODER, image(1024), **LARGE),
    Architecture("clip_vit_b32", "vit", _CLIP, {"images": image(224), **tokens(77, "token_ids")}, **SMALL),
    Architecture("swin_tiny", "swin", _SWIN, image(224), **SMALL),
    Architecture("segformer_b0", "segformer", _SEGFORMER, image(512), **SMALL),
    Architecture("deeplabv3_resnet50", "resnet", _DEEPLAB, image(512), **SMALL),
    Architecture("retinanet_resnet50", "resnet", _RETINANET, image(512), **SMALL),
    Architecture("cspdarknet53", "cspnet", _CSPDARKNET, image(256), **SMALL),
    Architecture("whisper_tiny", "whisper", _WHISPER, _WHISPER_INPUTS, **SMALL),
    Architecture("sd3_vae", "diffusion", _VAE, image(256), inference=(1, 2), training=(1, 2)),
    Architecture("sd3_mmdit_2b", "diffusion", _MMDIT, _MMDIT_INPUTS, **LARGE),
    Architecture("flux_dev", "diffusion", _FLUX, _FLUX_INPUTS, **LARGE, levels=("jaxpr",)),
]


# family: classes; their names in lower case are those of the zoo
_CLASSES = {
    "vgg": "VGG16 VGG19",
    "resnet": "ResNet50 ResNet101 ResNet152 ResNet50V2 ResNet101V2",
    "densenet": "DenseNet121 DenseNet169 DenseNet201",
    "mobilenet": "MobileNet MobileNetV2 MobileNetV3Small MobileNetV3Large",
    "efficientnet": "EfficientNetB0 EfficientNetB3 EfficientNetB7 EfficientNetV2B0 EfficientNetV2S",
    "convnext": "ConvNeXtTiny ConvNeXtBase",
    "inception": "InceptionV3 InceptionResNetV2 Xception",
    "nasnet": "NASNetMobile NASNetLarge",
}
_PIXELS = {  # where they are not 224
    "EfficientNetB3": 300, "EfficientNetB7": 600, "EfficientNetV2S": 384, "InceptionV3": 299, "InceptionResNetV2": 299,
    "Xception": 299, "NASNetLarge": 331,
}  # fmt: skip


def _application(name: str) -> Any:
    import keras

    return getattr(keras.applications, name)(weights=None)


APPLICATIONS = [
    Architecture(name.lower(), family, functools.partial(_application, name), image(_PIXELS.get(name, 224)))
    for family, names in _CLASSES.items()
    for name in names.split()
]


_TOKENS = jax.ShapeDtypeStruct((64,), "int32")


def _recurrent(cell: str, unroll: bool) -> Any:
    """Two layers of 512 units between an embedding and a softmax's logits over 10,000 words."""
    from keras import Model, layers

    words = layers.Input((64,), dtype="int32")
    x = layers.Embedding(10000, 512)(words)
    for _ in range(2):
        x = getattr(layers, cell)(512, return_sequences=True, unroll=unroll)(x)
    return Model(words, layers.Dense(10000)(x))


RECURRENT = [
    Architecture("lstm2", "recurrent", functools.partial(_recurrent, "LSTM", False), _TOKENS, **SMALL),
    Architecture("gru2", "recurrent", functools.partial(_recurrent, "GRU", False), _TOKENS, **SMALL),
    Architecture("lstm2_unrolled", "recurrent", functools.partial(_recurrent, "LSTM", True), _TOKENS, **SMALL),
]


BASE = (12, 12, 768, 3072)  # layers, heads, width, width inside

_PLAIN = ("token_ids", "padding_mask")
_SEGMENTS = (*_PLAIN, "segment_ids")
_TWO_SIDED = tuple(f"{side}_{name}" for side in ("encoder", "decoder") for name in _PLAIN)
# names of the sizes in the backbones
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
_ELECTRA = ("vocab_size", *_SIZES[1:], "embedding_dim")
_FALCON = (*_SIZES[:2], "num_attention_heads", *_SIZES[3:])
_FNET = (*_SIZES[:2], *_SIZES[3:])
_LLAMA = (*_SIZES[:2], "num_query_heads", "num_key_value_heads", *_SIZES[3:])
_RWKV = (*_SIZES[:2], "head_size", "hidden_size", "intermediate_dim")


def _model(
    name: str,
    family: str,
    cls: str,
    batches: dict[str, Any],
    length: int,
    inputs: Sequence[str],
    sizes: Sequence[int],
    names: Sequence[str] = _SIZES,
    **more: Any,
) -> Architecture:
    options = dict(zip(names, sizes, strict=True)) | more
    return Architecture(name, family, hub(f"{cls}Backbone", **options), tokens(length, *inputs), **batches)


def _llama(
    name: str, cls: str, sizes: Sequence[int], batches: dict[str, Any] = LARGE, length: int = 512, **more: Any
) -> Architecture:
    return _model(name, "llama", cls, batches, length, _PLAIN, sizes, _LLAMA, **more)


TEXT = [
    # encoders
    _model("bert_base", "bert", "Bert", SMALL, 128, _SEGMENTS, (30522, *BASE)),
    _model("roberta_base", "bert", "Roberta", SMALL, 128, _PLAIN, (50265, *BASE)),
    _model("distilbert", "bert", "DistilBert", SMALL, 128, _PLAIN, (30522, 6, *BASE[1:])),
    _model("electra_small", "bert", "Electra", SMALL, 128, _SEGMENTS, (30522, 12, 4, 256, 1024, 128), _ELECTRA),
    _model("albert_base", "bert", "Albert", SMALL, 128, _SEGMENTS, (30000, *BASE), embedding_dim=128),
    _model("deberta_v3_base", "deberta", "DebertaV3", SMALL, 128, _PLAIN, (128100, *BASE)),
    _model("fnet_base", "fnet", "FNet", SMALL, 128, ("token_ids", "segment_ids"), (32000, 12, 768, 3072), _FNET),
    _model("xlnet_base", "xlnet", "XLNet", SMALL, 128, _SEGMENTS, (32000, *BASE)),
    # decoders
    _model("gpt2", "gpt", "GPT2", SMALL, 256, _PLAIN, (50257, *BASE)),
    _model("opt_125m", "gpt", "OPT", SMALL, 256, _PLAIN, (50272, *BASE)),
    _model("bloom_560m", "gpt", "Bloom", SMALL, 256, _PLAIN, (250880, 24, 16, 1024, 4096)),
    _model("falcon_1b", "gpt", "Falcon", SMALL, 256, _PLAIN, (50304, 24, 32, 2048, 8192), _FALCON),
    _model("gpt_neox_20b", "gpt", "GPTNeoX", LARGE, 256, _PLAIN, (50432, 44, 64, 6144, 24576)),
    _llama("llama_7b", "Llama", (32000, 32, 32, 32, 4096, 11008)),
    _llama("llama3_8b", "Llama3", (128256, 32, 32, 8, 4096, 14336), rope_max_wavelength=500000),
    _llama("mistral_7b", "Mistral", (32000, 32, 32, 8, 4096, 14336), sliding_window=4096),
    _llama("mixtral_8x7b", "Mixtral", (32000, 32, 32, 8, 4096, 14336), num_experts=8, sliding_window=4096),
    _llama("gemma_2b", "Gemma", (256000, 18, 8, 1, 2048, 32768), head_dim=256),
    _llama("phi3_mini", "Phi3", (32064, 32, 32, 32, 3072, 8192)),
    _llama("qwen2_0_5b", "Qwen", (151936, 24, 14, 2, 896, 4864), SMALL, 256),
    _model("rwkv7_0_1b", "rwkv", "RWKV7", SMALL, 64, _PLAIN, (65536, 12, 64, 768, 3072), _RWKV),
    # sequence to sequence
    _model("t5_small", "t5", "T5", SMALL, 128, _TWO_SIDED, (32128, 6, 8, 512, 2048), use_gated_activation=False),
    _model("bart_base", "bart", "Bart", SMALL, 128, _TWO_SIDED, (50265, 6, *BASE[1:])),
]
