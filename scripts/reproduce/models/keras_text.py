"""Language models of keras_hub: backbones at the sizes of well-known checkpoints."""

from collections.abc import Sequence
from typing import Any

from reproduce.models.zoo import LARGE, SMALL, Architecture, hub, tokens

BASE = (12, 12, 768, 3072)  # layers, heads, width, width inside

_PLAIN = ("token_ids", "padding_mask")
_SEGMENTS = (*_PLAIN, "segment_ids")
_TWO_SIDED = tuple(f"{side}_{name}" for side in ("encoder", "decoder") for name in _PLAIN)
# what backbones call their sizes
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
