"""Who lives on and who has children: elites and tournaments (EGRL, algorithm 2, lines 9 to 12)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Chosen(NamedTuple):
    """Of k individuals, by place."""

    elite: jax.Array  # [k] bool, the fittest: they stay as they are
    kept: jax.Array  # [k] bool, elites and winners of tournaments: they stay in their places
    first: jax.Array  # [k] int32, an elite: one parent of the child that may take the place
    second: jax.Array  # [k] int32, a winner, which may be an elite: the other parent


def choose(key: jax.Array, fitness: jax.Array, elites: int, tournament: int) -> Chosen:
    """The `elites` fittest; the winners of as many tournaments as there are other places; parents for each place.

    A winner stays where it is however often it wins: the paper's set of winners then has room left, which children of
    an elite and a winner fill. An elite that wins has its copy among these children, where both parents are it.

    Args:
      key: of this generation.
      fitness: `[k]` float32, larger is better; ties to the lower place.
      elites: at least 1.
      tournament: individuals in each, drawn with replacement.
    """
    draw_key, first_key, second_key = jax.random.split(key, 3)
    k = fitness.shape[0]
    order = jnp.argsort(-fitness, stable=True).astype(jnp.int32)
    drawn = jax.random.randint(draw_key, (k - elites, tournament), 0, k).min(1)  # ranks
    winners = order[drawn]
    elite = jnp.zeros(k, bool).at[order[:elites]].set(True)
    won = jnp.zeros(k, bool).at[winners].set(True)
    first = order[jax.random.randint(first_key, (k,), 0, elites)]
    second = jax.random.categorical(second_key, jnp.where(won, 0.0, -jnp.inf), shape=(k,)).astype(jnp.int32)
    return Chosen(elite, elite | won, first, second)
