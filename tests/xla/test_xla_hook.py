"""The hook into XLA: what it shows, what it takes back, and that it leaves everybody else alone."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from xla_programs import branches, plans, temporaries, vector

from graphrl.errors import GraphrlError, PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.xla import callback, hook
from graphrl.xla.planning.cache import places_of

pytestmark = pytest.mark.usefixtures("plans")

__all__ = ["plans"]


def lowered() -> jax.stages.Lowered:
    return jax.jit(branches).lower(vector())


def test_xla_runs_the_order_that_it_is_given() -> None:
    program, x = lowered(), vector()
    memory = hook.captured(program, "memory")
    wide, narrow = (
        hook.compile_in_order(program),
        hook.compile_in_order(program, places_of(memory)),
    )
    assert temporaries(narrow) < 0.5 * temporaries(wide)
    assert temporaries(narrow) == temporaries(hook.compile_in_order(program, "memory"))
    assert np.array_equal(narrow(x), wide(x))
    final = parse_module(narrow)
    names = [name for name in final.order(final.entry) if name in memory.entry.by_name]
    assert names == [name for name in memory.order(memory.entry) if name in final.entry.by_name]


def test_quick_compilation_has_the_same_buffers() -> None:
    program = lowered()
    assert temporaries(hook.compile_in_order(program, quick=True)) == temporaries(program.compile())


def test_other_compilations_are_left_alone() -> None:
    program = lowered()
    before = temporaries(jax.jit(branches).lower(vector()).compile())
    memory = hook.captured(program, "memory")
    hook.compile_in_order(program, places_of(memory))
    assert temporaries(jax.jit(lambda x: branches(x)).lower(vector()).compile()) == before


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda names: names[:-1], "must be each of the [0-9]+ of computation 'main.* once"),
        (lambda names: [*names[:-1], names[0]], "must be each of the"),
        (lambda names: names[::-1], "jit_branches: the schedule has '.*' before '.*', its input"),
    ],
)
def test_what_is_no_order_of_the_module_is_refused(spoil: Callable[[list[str]], list[str]], text: str) -> None:
    program = lowered()
    module = hook.captured(program)
    with pytest.raises(PlanError, match=text):
        hook.compile_by(program, lambda _: {module.entry.name: spoil(list(module.order(module.entry)))})


def test_what_a_rule_raises_comes_out_and_the_next_compilation_is_none_the_worse() -> None:
    def rule(module: HloModule) -> None:
        raise KeyError(module.name)

    program = lowered()
    with pytest.raises(KeyError, match="jit_branches"):
        hook.compile_by(program, rule)
    assert temporaries(hook.compile_in_order(program)) > 0
    assert not callback._reasons


def test_other_platforms_and_several_processes_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook.available("cpu") is None
    assert str(hook.available("tpu")) == "XLA's own order stands on tpu: graphrl plans programs for cpu and no other"
    for name in ("gpu", "cuda", "rocm"):
        assert "own order stands on GPUs: it is near the least memory already" in str(hook.available(name))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert "for one process" in str(hook.available("cpu"))


def test_another_jaxlib_has_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    def register() -> None:
        raise NotImplementedError("register_hlo_module_transformation requires jaxlib version >= 0.10.2")

    program = lowered()
    monkeypatch.setattr(callback, "register", register)
    with pytest.raises(GraphrlError, match=r"has no hook for schedules .*from 0.10.2.* requires jaxlib"):
        hook.compile_in_order(program)
