"""GO's policy where it decides fusion: its start, the meaning of its choices, and that it learns which to inline."""

import numpy as np
import pytest
from fusion_graphs import CHIP, fusable_graphs, fusion_priorities
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.go.fusion import FusingPolicy, best_drawn, fused, initial, planned, settings_of
from reproduce.go.table3 import ONE_DEVICE, imitator
from reproduce.policies import untrained

from graphrl.agents.go.config import GoSettings
from graphrl.costs.fusion.exact import fuse
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.fusion.rules import fuse_by

LINK = Problem("makespan", 2, "link", latency=1.0, bandwidth=2.0)
FUSION, ALL = settings_of("fusion"), settings_of("placement", "priority", "fusion")


def pairs(count: int) -> FusionProblem:
    """Ops that two sums read: light ones, which are best computed in both, and heavy ones, which are not."""
    ops = list[Op]()
    for i in range(count):
        ops.append(Op(f"op{i}", "exp", inputs=("x",), outputs=(Tensor(f"t{i}", 64),), flops=1000 * (i % 2)))
        ops += [Op(f"{k}{i}", "reduce_sum", inputs=(f"t{i}",), outputs=(Tensor(f"{k}{i}", 1),), flops=64) for k in "ab"]
    kept = tuple(f"{k}{i}" for i in range(count) for k in "ab")
    return fusion_problem(ComputationGraph("pairs", tuple(ops), (Tensor("x", 8),), kept), CHIP)


@settings(max_examples=40)
@given(st.data())
def test_it_begins_at_the_plan_of_the_kernels(data: st.DataObject) -> None:
    problem = fusion_problem(data.draw(fusable_graphs()), CHIP)
    fusion, a = fuse(problem, data.draw(fusion_priorities(problem))), problem.graph.arrays
    alone, instance = initial(fusion, ONE_DEVICE, FUSION), initial(fusion, LINK, ALL)
    assert fused(problem, alone.start).seconds == pytest.approx(fusion.seconds)
    assert planned(problem, ONE_DEVICE, alone, alone.start).value == pytest.approx(fusion.seconds)
    order = np.asarray(instance.order)[: problem.num_ops]
    assert sorted(order.tolist()) == list(range(problem.num_ops))
    place = np.argsort(order)
    source, target = a.dependencies()
    assert (place[source] < place[target]).all()
    inlining = planned(problem, LINK, instance, instance.start).inlining
    assert inlining is not None
    assert inlining.inlined == problem.names(fusion.inlined)


def test_what_is_drawn_is_never_worse_and_at_times_better() -> None:
    problem = pairs(8)
    instance = initial(fuse_by("none", problem), ONE_DEVICE, FUSION)
    ends = [
        fused(
            problem,
            best_drawn(untrained(FusingPolicy, FUSION), instance, lambda plan: fused(problem, plan).seconds, **options),
        ).seconds
        for options in ({"rounds": 0, "samples": 1}, {"rounds": 2, "samples": 4}, {"rounds": 16, "samples": 4})
    ]
    assert ends[0] == fuse_by("none", problem).seconds
    assert ends[2] < ends[0]
    assert ends == sorted(ends, reverse=True)


def test_a_policy_imitates_where_flips_end() -> None:
    problem = pairs(16)
    best = fuse_by("flips", problem)
    assert fuse_by("xla", problem).seconds > best.seconds < fuse_by("all", problem).seconds
    policy = imitator([problem], 80)
    instance = initial(fuse_by("xla", problem), ONE_DEVICE, policy.config)
    choices = best_drawn(policy, instance, lambda plan: fused(problem, plan).seconds, rounds=1, samples=1)
    np.testing.assert_array_equal(fused(problem, choices).inlined, best.inlined)
    other = pairs(20)  # an unseen graph
    instance = initial(fuse_by("xla", other), ONE_DEVICE, policy.config)
    choices = best_drawn(policy, instance, lambda plan: fused(other, plan).seconds, rounds=1, samples=1)
    np.testing.assert_array_equal(fused(other, choices).inlined, fuse_by("flips", other).inlined)


def test_what_policies_decide_is_in_their_settings() -> None:
    with pytest.raises(GraphrlError, match=r"^network.tasks has fusion: must be placement, priority or both"):
        GoSettings(network=FUSION.network)
