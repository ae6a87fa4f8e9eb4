"""What a changed schedule could spoil is the same under `graphrl.jit` and `jax.jit`; and differences would be seen."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from reproduce.real_programs.cases.compiler import Compiler, N, differences, graphrl_s, jax_s, observed, vector
from reproduce.real_programs.cases.run import CASES, KINDS, Observer
from xla_programs import plans

from graphrl.errors import GraphrlError
from graphrl.xla.hook import available

pytestmark = [
    pytest.mark.usefixtures("plans"),
    pytest.mark.skipif(available() is not None, reason=str(available())),
]

__all__ = ["plans"]

# One or two of each kind; all of them are run by scripts/reproduce_real_programs.py.
FAST = (
    "ordered io callbacks with state", "effects with donated arguments", "bits of a generator", "cholesky", "barriers",
    "empty arrays", "states that change places", "static arguments", "collectives in loops",
)  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_what_a_case_shows_is_the_same(name: str) -> None:
    ours = graphrl_s(seconds=0.2)
    assert observed(CASES[name], ours) == observed(CASES[name], jax_s())
    assert any(report.planned for report in ours.reports())


def test_every_case_has_a_name_of_its_own() -> None:
    assert len(CASES) == sum(map(len, KINDS.values())) >= 60


def test_a_process_that_dies_is_said_and_replaced() -> None:
    observer = Observer()
    case = ("functions without work", "jax", 0.2)
    lines = observer.observe(*case)["lines"]
    assert observer._process is not None
    observer._process.kill()
    with pytest.raises(GraphrlError, match="under jax the process died with exit code -9"):
        observer.observe(*case)
    assert observer.observe(*case)["lines"] == lines
    observer.close()


def changed(results: Any) -> Compiler:
    """A compiler of functions that give other results."""
    return dataclasses.replace(jax_s(), jit=lambda fn, **_: lambda *args: results)


@pytest.mark.parametrize("results", [jnp.zeros(N).at[3].set(-0.0), jnp.zeros(N, jnp.int32), [jnp.zeros(N)], None])
def test_differences_are_seen(results: Any) -> None:
    def case(by: Compiler) -> Any:
        return by.jit(jnp.zeros_like)(vector())

    assert observed(case, jax_s()) != observed(case, changed(results))


def test_effects_errors_and_weak_types_are_seen() -> None:
    def effects(by: Compiler) -> Any:
        log: list[int] = []
        by.jit(lambda: [jax.debug.callback(lambda v: log.append(int(v)), k, ordered=True) for k in range(2)])()
        jax.effects_barrier()
        return log

    assert observed(effects, jax_s()) == ["[0] 0", "[1] 1"] != observed(effects, changed(None))
    assert observed(lambda by: by.jit(lambda x: x + 1)(2), jax_s())[0].count(" weak ") == 1


def test_a_lost_donation_is_no_wrong_result() -> None:
    pairs = [("[0] 'deleted'", "[0] 'kept'"), ("[1] float32[2] a", "[1] float32[2] b"), ("[2] 'kept'", "[2] 'deleted'")]
    assert differences(*zip(*pairs, strict=True)) == (pairs[:1], pairs[1:])
