"""Prices of choices against a count by live sets, step by step, and properties of all prices."""

import numpy as np
import pytest
from budget_costs import Cost, cost, loop_cost_by_steps
from hypothesis import given
from hypothesis import strategies as st
from random_gradients import cuts, gradients, levels

from graphrl.xla.checkpoint.solvers.choice import Cut, Pricing, default_choice
from graphrl.xla.checkpoint.solvers.level import KEPT, MOVED, RECOMPUTED, Gradient, Level
from graphrl.xla.checkpoint.solvers.price import price, work


def priced(level: Level, cut: Cut) -> Cost:
    """The same as `cost`, by the compiled function."""
    own = work(level)
    price(level, *cut, own)
    kept, moved, forward, backward, seconds, _, rerunning, _ = own.prices.tolist()
    rerun = own.rerun & level.materialized & (own.stored == RECOMPUTED)
    recomputed = {v for v in range(len(level.bytes)) if own.last_run[level.op[v]] >= 0 or rerun[v]}
    return Cost(kept, moved, forward, backward, seconds, rerunning, own.stored.tolist(), recomputed)


@given(st.data(), st.sampled_from([0, 0, 1, 3]))
def test_prices_are_those_of_live_sets(data: st.DataObject, trips: int) -> None:
    level = data.draw(levels(trips=trips))
    cut = data.draw(cuts(level))
    ours, naive = priced(level, cut), cost(level, cut)
    assert ours.stored == naive.stored
    assert ours[:6] == pytest.approx(naive[:6])
    assert {level.op[v] for v in ours.recomputed_values} == {level.op[v] for v in naive.recomputed_values}


def with_loop(gradient: Gradient, stretch: int, inner: Cost) -> Level:
    """The level around a loop whose body costs `inner`, in stretches of `stretch` steps."""
    outer, body = gradient.levels
    stored, shared = inner.stored, 0.0
    for carry, after in enumerate(body.following.tolist()):
        shared += body.bytes[after] * (after >= 0 and stored[carry] == stored[after] == KEPT)
    (loop,) = gradient.loops[0].values()
    outer = outer._replace(**{name: getattr(outer, name).copy() for name in ("bytes", "workspace", "kernel_bytes")})
    kept, forward, backward = loop_cost_by_steps(loop, body.trips, stretch, inner, shared * loop.is_unrolled(stretch))
    outer.bytes[loop.kept[0]] = kept
    outer.workspace[loop.outputs[0]] = forward
    outer.kernel_bytes[loop.kernel] += backward
    return outer


@given(st.data())
def test_a_loop_costs_its_trips(data: st.DataObject) -> None:
    gradient = data.draw(gradients())
    choice = tuple(data.draw(cuts(level)) for level in gradient.levels)
    whole = Pricing(gradient)(choice)
    moved, seconds, level = 0.0, 0.0, gradient.levels[0]
    if len(gradient.levels) > 1:
        body, loop, cut = gradient.levels[1], gradient.loop(1), choice[1]
        trips = body.trips
        if loop is not None and loop.is_unrolled(choice[1].stretch):
            body = body._replace(trips=0, keep_seconds=body.write_seconds)
            cut = cut._replace(recomputed=np.zeros_like(cut.recomputed))
        inner = cost(body, cut)
        moved, seconds = trips * inner.moved, trips * (inner.seconds + inner.rerunning)
        level = with_loop(gradient, choice[1].stretch, inner)
    outer = cost(level, choice[0])
    assert (whole.kept, whole.peak) == (outer.kept, max(outer.forward, outer.backward))
    assert (whole.moved, whole.seconds) == (outer.moved + moved, outer.seconds + seconds)


@given(st.data())
def test_moving_instead_of_keeping_takes_no_more_memory_of_its_own(data: st.DataObject) -> None:
    level = data.draw(levels())
    cut = data.draw(cuts(level, (RECOMPUTED, KEPT)))
    kept = priced(level, cut)
    moved = priced(level, cut._replace(keep=np.where(cut.keep == KEPT, MOVED, RECOMPUTED)))
    assert kept.moved == 0.0
    assert moved.kept + moved.moved == kept.kept
    in_results = level.result_bytes.sum()  # their memory is for kept values, not for those on the way to the host
    assert moved.forward <= kept.forward + in_results
    assert moved.backward <= kept.backward + in_results
    assert moved.seconds >= kept.seconds - 1e-9


@given(st.data())
def test_jax_alone_keeps_materialized_values(data: st.DataObject) -> None:
    gradient = data.draw(gradients())
    pricing = Pricing(gradient)
    plain = pricing(default_choice(gradient))
    assert plain == pricing.plain
    assert plain.moved == 0.0
    stored = pricing.stored(0)
    assert not stored[~gradient.levels[0].materialized].any()
    assert not any(pricing.recomputed_values(number).any() for number in range(len(gradient.levels)))
    forward, backward = pricing.timeline()
    assert max(forward.max(initial=0.0), backward.max(initial=0.0)) == plain.peak
