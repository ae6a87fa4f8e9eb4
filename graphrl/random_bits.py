"""Fast random 32-bit words for the inner loop of a genetic algorithm.

threefry takes 2 to 4 ns per word on a CPU, more than a gene's crossover; BRKGA needs a word for each gene of each
child. Here threefry only seeds each generation of each graph. A counter-based integer hash generates the words: two
rounds of lowbias32, Ellis's and Wellons' 32-bit mixer of bias 0.17, in plain vector arithmetic on every backend.
`decoding/random_words.py` has the same words for compiled functions.
"""

import jax
import jax.numpy as jnp

GOLDEN = 0x9E3779B9
FIRST_FACTOR, SECOND_FACTOR = 0x7FEB352D, 0x846CA68B  # of lowbias32


def _mix(word: jax.Array) -> jax.Array:
    word = word ^ (word >> jnp.uint32(16))
    word = word * jnp.uint32(FIRST_FACTOR)
    word = word ^ (word >> jnp.uint32(15))
    word = word * jnp.uint32(SECOND_FACTOR)
    return word ^ (word >> jnp.uint32(16))


def random_words(seeds: jax.Array, rows: int | jax.Array, columns: int) -> jax.Array:
    """Generates `[rows, g, columns]` uint32 words; those of a graph depend only on its seed, its row and its column.

    Args:
      seeds: `[g, 2]` uint32, two words per graph.
      rows: number of rows, or the counter of each row, `[rows, g]` uint32: rows with equal counters have equal words.
      columns: number of columns.
    """
    numbers = jnp.arange(rows, dtype=jnp.uint32)[:, None] if isinstance(rows, int) else rows
    row = numbers[..., None] * jnp.uint32(columns)
    counter = (row + jnp.arange(columns, dtype=jnp.uint32)[None, None, :]) * jnp.uint32(GOLDEN)
    return _mix(_mix(counter + seeds[None, :, :1]) ^ seeds[None, :, 1:])


def unit_interval(words: jax.Array) -> jax.Array:
    """Converts uint32 words to float32 numbers, uniform in [0, 1), multiples of 2^-24."""
    return (words >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)
