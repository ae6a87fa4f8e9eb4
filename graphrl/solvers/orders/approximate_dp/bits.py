"""Sets, counters and lists as padded arrays, on the host (tables.py says how they are laid out)."""

import numpy as np

from graphrl.solvers.orders.approximate_dp.tables import WORD

_PLANES = (5, 8, 12, 16, 20, 24, 28, 32)  # numbers of planes: few, for few programs


def words(count: int) -> int:
    """Words for `count` bits, at least 1, rounded up to one of four sizes an octave."""
    least = max(1, -(-count // WORD))
    step = max(1, (1 << least.bit_length() - 1) // 4)
    return -(-least // step) * step


def filled(values: list[int], size: int) -> np.ndarray:
    """The values and then zeros: `[size]` int32."""
    out = np.zeros(size, np.int32)
    out[: len(values)] = values
    return out


def sets(rows: list[list[int]], size: int, words: int) -> np.ndarray:
    """Sets as columns: `[words, size]` uint32."""
    out = np.zeros((words, size), np.uint32)
    for column, row in enumerate(rows):
        for index in row:
            out[index // WORD, column] |= np.uint32(1 << index % WORD)
    return out


def planes(counts: list[int], words: int, padding: int) -> np.ndarray:
    """Counters as planes: `[words, planes]` uint32."""
    longest = max(counts, default=0).bit_length()
    number = next(number for number in _PLANES if number >= longest)
    padded = np.full(words * WORD, padding, np.int64)
    padded[: len(counts)] = counts
    bits = padded.reshape(words, 1, WORD) >> np.arange(number)[:, None] & 1
    return (bits << np.arange(WORD)).sum(-1).astype(np.uint32)


def columns(rows: list[list[tuple[int, int]]], size: int, always: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of pairs as columns: their first and second parts `[s, size]` int32, and lengths `[size]` int32.

    s is a power of two of at least 32 (who sums them stops at the longest) that holds the longest list; or 0, if all
    are empty and not `always`.
    """
    longest = max(always, *(len(row) for row in rows))
    slots = max(32, 1 << (longest - 1).bit_length()) if longest else 0
    out = np.zeros((2, slots, size), np.int32)
    for column, row in enumerate(rows):
        if row:
            out[:, : len(row), column] = np.array(row).T
    return out[0], out[1], filled([len(row) for row in rows], size)
