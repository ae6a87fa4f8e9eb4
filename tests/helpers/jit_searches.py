"""`graphrl.jit` with short searches, which are counted."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

import graphrl
from graphrl.xla.planning import planner

jit = functools.partial(graphrl.jit, seconds=0.2)


def same(a: Any, b: Any) -> bool:
    return str(jax.tree.structure(a)) == str(jax.tree.structure(b)) and all(
        np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the programs that were searched."""
    names: list[str] = []

    def decide(lowered: Any, unplanned: Any, *rest: Any) -> Any:
        names.append(unplanned.module.name)
        return original(lowered, unplanned, *rest)

    original = planner.decide
    monkeypatch.setattr(planner, "decide", decide)
    return names
