"""Recurrent networks: loops (`scan`) as single ops, and unrolled ones."""

import functools
from typing import Any

import jax

from reproduce.zoo.architecture import SMALL, Architecture

_TOKENS = jax.ShapeDtypeStruct((64,), "int32")


def _build(cell: str, unroll: bool) -> Any:
    """Two layers of 512 units between an embedding and a softmax's logits over 10,000 words."""
    from keras import Model, layers

    words = layers.Input((64,), dtype="int32")
    x = layers.Embedding(10000, 512)(words)
    for _ in range(2):
        x = getattr(layers, cell)(512, return_sequences=True, unroll=unroll)(x)
    return Model(words, layers.Dense(10000)(x))


ARCHITECTURES = [
    Architecture("lstm2", "recurrent", functools.partial(_build, "LSTM", False), _TOKENS, **SMALL),
    Architecture("gru2", "recurrent", functools.partial(_build, "GRU", False), _TOKENS, **SMALL),
    Architecture("lstm2_unrolled", "recurrent", functools.partial(_build, "LSTM", True), _TOKENS, **SMALL),
]
