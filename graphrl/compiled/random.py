"""Random numbers of compiled searches: splitmix64 (Steele, Lea & Flood 2014), its state in an array of one word."""

import numpy as np

from graphrl.compiled import inlined, integer

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31, _32, _63 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32, 63))


@inlined
def word(rng: np.ndarray) -> np.uint64:
    """64 random bits; `rng` `[1]` uint64 moves on."""
    rng[0] += _STEP
    z = rng[0]
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@inlined
def below(rng: np.ndarray, count: int) -> int:
    """Uniform from 0 to count - 1, for a count below 2^32."""
    return integer(((word(rng) >> _32) * np.uint64(count)) >> _32)


@inlined
def uniform(rng: np.ndarray) -> float:
    """Uniform in (0, 1]."""
    return (np.float64(word(rng) >> _11) + 1.0) * 2.0**-53


@inlined
def coin(rng: np.ndarray) -> bool:
    """True every second time."""
    return (word(rng) >> _63) == np.uint64(1)
