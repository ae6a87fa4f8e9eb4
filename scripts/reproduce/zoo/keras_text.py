"""Language models of keras_hub: backbones at the sizes of well-known checkpoints."""

import functools
from typing import Any

from reproduce.zoo.architecture import Architecture, tokens

SMALL: dict[str, Any] = {"inference": (1, 8), "training": (2, 8)}
LARGE: dict[str, Any] = {"inference": (1, 4), "training": (1, 4)}
BASE = (12, 12, 768, 3072)  # of `_transformer`

_PLAIN = ("token_ids", "padding_mask")
_SEGMENTS = (*_PLAIN, "segment_ids")
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
_LLAMA_SIZES = (*_SIZES[:2], "num_query_heads", "num_key_value_heads", *_SIZES[3:])
_TWO_SIDED = tuple(f"{side}_{name}" for side in ("encoder", "decoder") for name in _PLAIN)


def _build(name: str, options: dict[str, Any]) -> Any:
    import keras_hub

    return getattr(keras_hub.models, name + "Backbone")(**options)


def _model(name: str, family: str, cls: str, inputs: Any, batches: dict[str, Any], **options: Any) -> Architecture:
    return Architecture(name, family, functools.partial(_build, cls, options), inputs, **batches)


def _transformer(
    name: str,
    family: str,
    cls: str,
    inputs: Any,
    batches: dict[str, Any],
    vocabulary: int,
    shape: tuple[int, ...],
    **more: Any,
) -> Architecture:
    """`shape`: layers, heads, width, width inside."""
    sizes = dict(zip(_SIZES, (vocabulary, *shape), strict=True))
    return _model(name, family, cls, inputs, batches, **sizes, **more)


def _llama(
    name: str, cls: str, batches: dict[str, Any], length: int, shape: tuple[int, ...], **more: Any
) -> Architecture:
    """`shape`: vocabulary, layers, query heads, key and value heads, width, width inside."""
    sizes = dict(zip(_LLAMA_SIZES, shape, strict=True))
    return _model(name, "llama", cls, tokens(length, *_PLAIN), batches, **sizes, **more)


ENCODERS = [
    _transformer("bert_base", "bert", "Bert", tokens(128, *_SEGMENTS), SMALL, 30522, BASE),
    _transformer("roberta_base", "bert", "Roberta", tokens(128, *_PLAIN), SMALL, 50265, BASE),
    _transformer("distilbert", "bert", "DistilBert", tokens(128, *_PLAIN), SMALL, 30522, (6, *BASE[1:])),
    _model(
        "electra_small",
        "bert",
        "Electra",
        tokens(128, *_SEGMENTS),
        SMALL,
        vocab_size=30522,
        num_layers=12,
        num_heads=4,
        hidden_dim=256,
        embedding_dim=128,
        intermediate_dim=1024,
    ),
    _transformer("albert_base", "bert", "Albert", tokens(128, *_SEGMENTS), SMALL, 30000, BASE, embedding_dim=128),
    _transformer("deberta_v3_base", "deberta", "DebertaV3", tokens(128, *_PLAIN), SMALL, 128100, BASE),
    _model(
        "fnet_base",
        "fnet",
        "FNet",
        tokens(128, "token_ids", "segment_ids"),
        SMALL,
        vocabulary_size=32000,
        num_layers=12,
        hidden_dim=768,
        intermediate_dim=3072,
    ),
    _transformer("xlnet_base", "xlnet", "XLNet", tokens(128, *_SEGMENTS), SMALL, 32000, BASE),
]

DECODERS = [
    _transformer("gpt2", "gpt", "GPT2", tokens(256, *_PLAIN), SMALL, 50257, BASE),
    _transformer("opt_125m", "gpt", "OPT", tokens(256, *_PLAIN), SMALL, 50272, BASE),
    _transformer("bloom_560m", "gpt", "Bloom", tokens(256, *_PLAIN), SMALL, 250880, (24, 16, 1024, 4096)),
    _model(
        "falcon_1b",
        "gpt",
        "Falcon",
        tokens(256, *_PLAIN),
        SMALL,
        vocabulary_size=50304,
        num_layers=24,
        num_attention_heads=32,
        hidden_dim=2048,
        intermediate_dim=8192,
    ),
    _transformer("gpt_neox_20b", "gpt", "GPTNeoX", tokens(256, *_PLAIN), LARGE, 50432, (44, 64, 6144, 24576)),
    _llama("llama_7b", "Llama", LARGE, 512, (32000, 32, 32, 32, 4096, 11008)),
    _llama("llama3_8b", "Llama3", LARGE, 512, (128256, 32, 32, 8, 4096, 14336), rope_max_wavelength=500000),
    _llama("mistral_7b", "Mistral", LARGE, 512, (32000, 32, 32, 8, 4096, 14336), sliding_window=4096),
    _llama("mixtral_8x7b", "Mixtral", LARGE, 512, (32000, 32, 32, 8, 4096, 14336), num_experts=8, sliding_window=4096),
    _llama("gemma_2b", "Gemma", LARGE, 512, (256000, 18, 8, 1, 2048, 32768), head_dim=256),
    _llama("phi3_mini", "Phi3", LARGE, 512, (32064, 32, 32, 32, 3072, 8192)),
    _llama("qwen2_0_5b", "Qwen", SMALL, 256, (151936, 24, 14, 2, 896, 4864)),
    _model(
        "rwkv7_0_1b",
        "rwkv",
        "RWKV7",
        tokens(64, *_PLAIN),
        SMALL,
        hidden_size=768,
        head_size=64,
        num_layers=12,
        vocabulary_size=65536,
        intermediate_dim=3072,
    ),
]

SEQUENCE_TO_SEQUENCE = [
    _transformer(
        "t5_small",
        "t5",
        "T5",
        tokens(128, *_TWO_SIDED),
        SMALL,
        32128,
        (6, 8, 512, 2048),
        use_gated_activation=False,
    ),
    _transformer("bart_base", "bart", "Bart", tokens(128, *_TWO_SIDED), SMALL, 50265, (6, *BASE[1:])),
]

ARCHITECTURES = [*ENCODERS, *DECODERS, *SEQUENCE_TO_SEQUENCE]
