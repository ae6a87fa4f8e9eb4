"""What a network sees of an op's type: NumPy, on the host.

A type is any text ("dot_general", "Conv", "reduce"), and a network must take one that it was never trained on. So types
are no table: the three-letter parts of the name, in lower case, are counted in `BUCKETS` buckets by a hash, with a sign
by another, and scaled to length 1. Names with parts in common ("reduce_max" and "reduce_sum") are close, others are
nearly at right angles. Beside it stands what `layers.kinds` knows of the type.
"""

import functools
import zlib

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.layers.kinds import LIGHT, REDUCTIONS

BUCKETS = 16
TYPE_FEATURES = ("light", "reduction", *(f"name_{i}" for i in range(BUCKETS)))


def type_features(graph: ComputationGraph) -> np.ndarray:
    """`[n, len(TYPE_FEATURES)]` float32, a row per op in the graph's order."""
    return np.array([_features(op.type) for op in graph.ops], np.float32).reshape(-1, len(TYPE_FEATURES))


@functools.lru_cache(maxsize=4096)
def _features(type: str) -> tuple[float, ...]:
    """Of one type; of no name all 0."""
    name = np.zeros(BUCKETS)
    text = f"<{type.lower()}>"
    for i in range(len(text) - 2 if type else 0):
        hashed = zlib.crc32(text[i : i + 3].encode())
        name[hashed % BUCKETS] += 1.0 if hashed >> 31 else -1.0
    length = np.sqrt(np.square(name).sum())
    return float(type in LIGHT), float(type in REDUCTIONS), *(name / max(length, 1.0))
