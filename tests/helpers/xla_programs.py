"""Small programs with and without headroom for the tests of `graphrl.xla`, and the folder of their plans."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import graphrl

N = 256


def branches(x: jax.Array) -> jax.Array:
    """`[N]` -> `[N]`: four branches, each with `[N, N]` intermediates that nothing else needs.

    XLA's default schedule has all of them live together: 1 MiB of temporaries where 0.26 would do.
    """
    total = jnp.zeros_like(x)
    for k in range(4):
        big = jnp.sort(jnp.sin(jnp.outer(x, x) * (k + 1.0)), axis=0)
        total = total + jnp.sort(big * 2.0, axis=1).sum(0)
    return total


def chain(x: jax.Array) -> jax.Array:
    """`[N]` -> `[N]`: 1.5 MiB op by op, with a single possible order."""
    big = jnp.outer(jnp.repeat(x, 2), jnp.repeat(x, 3))
    for k in range(6):
        big = jnp.sort(jnp.sin(big), axis=k % 2)
    return big.sum(0)[:N]


def vector(seed: int = 0) -> jax.Array:
    """A vector `[N]`."""
    return jax.random.normal(jax.random.key(seed), (N,))


def temporaries(executable: jax.stages.Compiled | graphrl.Executable) -> int:
    """Bytes of temporaries by XLA's report."""
    analysis = executable.memory_analysis()
    assert analysis is not None
    return int(analysis.temp_size_in_bytes)


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for plans; jax's cache on disk, which would answer in XLA's place, stores nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    least = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float("inf"))
    yield tmp_path / "graphrl" / "plans"
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


@pytest.fixture
def loose_numerics() -> Iterator[None]:
    """Allows type promotion: optax, Flax and Keras need jax's default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
