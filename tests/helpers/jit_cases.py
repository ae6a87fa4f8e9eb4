"""Programs that a changed schedule could spoil: `graphrl.jit` has to show the same as `jax.jit`.

A case is a function that receives the compiler, and returns all that a user sees of its programs; `same` turns it into
a test. `scripts/reproduce_real_programs.py --sections same-results` tabulates these tests.
"""

import dataclasses
import functools
import hashlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphrl
from graphrl.xla.hook import why_unavailable

N = 256
SECONDS = 0.2  # of a search: the order has to be another one, not a good one
DELETED, KEPT, IN_PLACE, ELSEWHERE = "deleted", "kept", "in place", "elsewhere"


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Compiles with jax, or with graphrl.

    Attributes:
      jit: as `jax.jit`.
      compile: a function that `jit` gave, and arguments -> the executable.
      reports: reports of all programs that graphrl has compiled.
    """

    jit: Callable[..., Any]
    compile: Callable[..., Any]
    reports: Callable[[], Sequence[graphrl.Report]] = tuple


_LOST = ((DELETED, KEPT), (IN_PLACE, ELSEWHERE))

# A case's results as a user sees them: arrays, texts and numbers in a pytree.
Case = Callable[[Compiler], Any]


def jax_s() -> Compiler:
    """Compiles with jax."""
    return Compiler(jax.jit, lambda jitted, *args: jitted.lower(*args).compile())


def graphrl_s(seconds: float) -> Compiler:
    """Compiles with graphrl, which searches each order for `seconds`."""
    functions, executables = [], []
    options: Mapping[str, Any] = {"seconds": seconds, "cache": False}

    def jit(fn: Callable[..., Any], **jit_kwargs: Any) -> Any:
        functions.append(graphrl.jit(fn, **options, **jit_kwargs))
        return functions[-1]

    def compile(jitted: Any, *args: Any) -> Any:
        executables.append(graphrl.compile(jitted, *args, **options))
        return executables[-1]

    def reports() -> Sequence[graphrl.Report]:
        return [*(r for fn in functions for r in fn.reports), *(each.report() for each in executables)]

    return Compiler(jit, compile, reports)


def same(case: Case) -> Callable[..., None]:
    """A test that a case shows the same to the bit. Where graphrl keeps an argument that jax deletes, as its
    documentation allows, the donation is noted as lost.
    """

    @pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
    @pytest.mark.usefixtures("plans")
    @functools.wraps(case)
    def test(*, record_property: Callable[[str, object], None]) -> None:
        ours = graphrl_s(SECONDS)
        lost, others = differences(observed(case, jax_s()), observed(case, ours))
        reports = ours.reports()
        record_property("programs", len(reports))
        record_property("planned", sum(report.planned for report in reports))
        record_property("lost", int(bool(lost)))
        assert not others

    del test.__wrapped__  # its arguments are fixtures, not the case's
    return test


def observed(case: Case, compiler: Compiler) -> list[str]:
    """Lines of text that show a case's results to the bit, its warnings and its errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown = case(compiler)
        jax.effects_barrier()
    said = sorted(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    leaves = jax.tree_util.tree_leaves_with_path(shown, is_leaf=lambda leaf: leaf is None)
    return [f"{jax.tree_util.keystr(path)} {_line(leaf)}".strip() for path, leaf in leaves] + said


def _line(leaf: Any) -> str:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return repr(leaf)
    more, data = "", leaf
    if isinstance(leaf, jax.Array):
        more = f" {leaf.sharding}{' weak' * leaf.aval.weak_type}"
        data = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    bits = hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]
    return f"{leaf.dtype}{list(leaf.shape)}{more} {bits}"


def differences(theirs: Sequence[str], ours: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs of lines that differ: those of a lost donation, and all others."""
    pairs = [(a, b) for a, b in itertools.zip_longest(theirs, ours, fillvalue="") if a != b]
    lost = [(a, b) for a, b in pairs if any(a.endswith(repr(u)) and b.endswith(repr(v)) for u, v in _LOST)]
    return lost, [pair for pair in pairs if pair not in lost]


def fates(arrays: Any) -> list[str]:
    """State of each array that was donated, or was not."""
    return [DELETED if leaf.is_deleted() else KEPT for leaf in jax.tree.leaves(arrays)]


def raised(call: Callable[[], Any]) -> str:
    """Name of the error type that a call raises; "nothing" if it returns."""
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return type(error).__name__
    return "nothing"


def wide(x: jax.Array) -> jax.Array:
    """`[N]` -> `[N]`: four branches with `[N, N]` between. In XLA's default schedule all of them are live together, so
    that another order needs less.
    """
    return functools.reduce(jnp.add, branches(x))


def branches(x: jax.Array, count: int = 4) -> list[jax.Array]:
    """The branches of `wide`, `[N]` each."""
    waves = [jnp.sin(jnp.outer(x, x) * jnp.asarray(k + 1, x.dtype)) for k in range(count)]
    return [(wave @ wave * jnp.asarray(0.01, x.dtype)).sum(0) for wave in waves]


def vector(seed: int = 0) -> jax.Array:
    """`[N]`, normal."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(N, np.float32))


def matrix(seed: int = 0, side: int = N) -> jax.Array:
    """`[side, side]`, normal, of norm about 2."""
    numbers = np.random.default_rng(seed).standard_normal((side, side), np.float32)
    return jnp.asarray(numbers / np.sqrt(np.float32(side)))
