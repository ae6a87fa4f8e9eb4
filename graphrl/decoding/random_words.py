"""Random words of `graphrl/random_bits.py` in compiled functions, one at a time: the same bits.

Words are uint64 below 2^32: numba widens uint32.
"""

import numpy as np

from graphrl.compiled import inlined, integer
from graphrl.random_bits import FIRST_FACTOR, GOLDEN, SECOND_FACTOR

_8, _15, _16 = (np.uint64(bits) for bits in (8, 15, 16))
_MASK = np.uint64(0xFFFFFFFF)
_GOLDEN, _FIRST, _SECOND = np.uint64(GOLDEN), np.uint64(FIRST_FACTOR), np.uint64(SECOND_FACTOR)
_UNIT = np.float32(2.0**-24)


@inlined
def random_word(seeds: np.ndarray, counter: int) -> np.uint64:
    """The word of two seeds `[2] uint32` and a counter (row * columns + column of `random_words`)."""
    word = np.uint64(counter) * _GOLDEN + np.uint64(seeds[0])
    return _mix(_mix(word & _MASK) ^ np.uint64(seeds[1]))


@inlined
def unit_interval(word: np.uint64) -> np.float32:
    """A word as float32 uniform in [0, 1), a multiple of 2^-24."""
    return np.float32(integer(word >> _8)) * _UNIT


@inlined
def _mix(word: np.uint64) -> np.uint64:
    word = word ^ (word >> _16)
    word = word * _FIRST & _MASK
    word = word ^ (word >> _15)
    word = word * _SECOND & _MASK
    return word ^ (word >> _16)
