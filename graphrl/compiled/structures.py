"""Data structures of compiled searches: binary heaps, random numbers, and graphs as rows of indices.

- Heaps have items whose keys are in an array by item. The least key comes first; of equal keys, the lower item.
- Random numbers are splitmix64 (Steele, Lea & Flood 2014), with the state in an array of one word.
- Graphs are rows of indices and records, with numbers for names.
"""

import numpy as np

from graphrl.compiled import inlined, integer, late_entry


@inlined
def push(heap: np.ndarray, keys: np.ndarray, length: int, item: int) -> int:
    """Adds an item; returns the new length."""
    i = length
    while i > 0 and _before(keys, item, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = item
    return length + 1


@inlined
def pop(heap: np.ndarray, keys: np.ndarray, length: int) -> int:
    """Removes the first item, `heap[0]`; returns the new length."""
    length -= 1
    last, i = heap[length], integer(0)
    while True:
        child = 2 * i + 1
        if child + 1 < length and _before(keys, heap[child + 1], heap[child]):
            child += 1
        if child >= length or not _before(keys, heap[child], last):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = last
    return length


@inlined
def _before(keys: np.ndarray, u: int, v: int) -> bool:
    return keys[u] < keys[v] or (keys[u] == keys[v] and u < v)


_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_11, _27, _30, _31, _32, _63 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32, 63))


@inlined
def word(rng: np.ndarray) -> np.uint64:
    """64 random bits; advances the state `rng`, `[1] uint64`."""
    rng[0] += _STEP
    z = rng[0]
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@inlined
def below(rng: np.ndarray, count: int) -> int:
    """Uniform integer from 0 to count - 1, for a count below 2^32."""
    return integer(((word(rng) >> _32) * np.uint64(count)) >> _32)


@inlined
def uniform(rng: np.ndarray) -> float:
    """Uniform float in (0, 1]."""
    return (np.float64(word(rng) >> _11) + 1.0) * 2.0**-53


@inlined
def coin(rng: np.ndarray) -> bool:
    """True with probability 1/2."""
    return (word(rng) >> _63) == np.uint64(1)


def set_rows(*groups: tuple[np.ndarray, str, np.ndarray, np.ndarray]) -> np.ndarray:
    """Rows of indices, one after another: `[x] uint32`.

    Args:
      *groups: (records, field, keys, values). There is one record more than rows. The starts of the rows are written
        into the records' field; a row ends where the next one starts. `keys` `[k]` are the records of the indices
        `values` `[k]`.
    """
    rows: list[np.ndarray] = []
    begin = 0
    for records, field, keys, values in groups:
        begins, row = rows_by(keys, values, len(records))
        records[field] = begin + begins[:-1]
        rows.append(row.astype(np.uint32))
        begin += len(keys)
    return np.concatenate(rows)


def rows_by(keys: np.ndarray, values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by key, each row in the given order.

    This is a counting sort: `np.argsort` takes ten times as long.

    Args:
      keys, values: `[k]` integers; keys from 0 to size - 1.
      size: number of rows.

    Returns:
      Starts of the rows and the end of the last one, `[size + 1] int64`; and the values, `[k] int64`.
    """
    begins, rows = np.zeros(size + 1, np.int64), np.empty(len(keys), np.int64)
    _fill(keys.astype(np.int64), values.astype(np.int64), begins, rows)
    return begins, rows


@late_entry
def _fill(keys: np.ndarray, values: np.ndarray, begins: np.ndarray, rows: np.ndarray) -> None:
    """Writes `begins`, which must be 0 before, and `rows`."""
    for k in range(len(keys)):
        begins[keys[k] + 1] += 1
    for key in range(1, len(begins)):
        begins[key] += begins[key - 1]
    for k in range(len(keys)):  # this moves each start to the end of its row
        rows[begins[keys[k]]] = values[k]
        begins[keys[k]] += 1
    for key in range(len(begins) - 1, 0, -1):
        begins[key] = begins[key - 1]
    begins[0] = 0
