"""HDP: a method like others that learns to place the graph at hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import random_dag

from graphrl.agents.go import hdp
from graphrl.agents.go.hdp import Draw, HdpConfig, Instance, init, instance, play
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task

SMALL = "hdp:hidden=8,groups=4,rate=0.03,children=4,updates=40,sampled=30,noisy=30"


def chains(count: int, length: int) -> ComputationGraph:
    """Independent chains: on `count` devices they take the time of one."""
    ops = []
    for chain in range(count):
        for i in range(length):
            inputs = (f"t{chain}.{i - 1}",) if i else ()
            ops.append(Op(f"op{chain}.{i}", f"kind{chain}", 1.0, inputs, (Tensor(f"t{chain}.{i}", 100),)))
    return ComputationGraph("chains", tuple(ops))


CHAINS, LINK = chains(2, 8), Problem("makespan", 2, "link", bandwidth=50.0)
FREE = Problem("makespan", 2, "link")
COSTS = jax.jit(hdp.costs)


def solved(evaluations: int, method: str = SMALL) -> Plan:
    plan = find_solver(method)(Task(CHAINS, FREE, Budget(evaluations=evaluations), 0))
    plan.check(CHAINS)
    return plan


def test_it_finds_what_goes_together_and_repeats() -> None:
    plan = solved(400)
    assert 8.0 <= plan.makespan <= 10.0
    assert plan.evaluations == 400
    assert plan.placement == solved(400).placement
    assert solved(10).evaluations == 8  # whole updates


def test_groups_are_sampled_throughout_and_devices_until_they_need_not_be() -> None:
    config = HdpConfig(hidden=8, groups=4)
    task: Instance = jax.tree.map(jnp.asarray, instance(CHAINS, LINK))
    params, keys = init(config, jax.random.key(0), task), jax.random.split(jax.random.key(1), 16)
    draw = Draw(jnp.float32(0), jnp.asarray(False))
    likelihoods, _ = jax.vmap(lambda key: play(config, params, key, task, draw))(keys)
    assert len(np.unique(np.asarray(likelihoods))) > 8


def test_the_device_values_placements_as_the_host_does() -> None:
    graph, problem = random_dag(3), Problem("makespan", 3, "rendezvous", 0.5, 20.0)
    task = instance(graph, problem)
    placements = np.random.default_rng(0).integers(3, size=(2, len(task.leader))).astype(np.int32)
    values = COSTS(task, jnp.asarray(placements)) * task.graph.second_unit[0]
    made = hdp.decisions(task, jnp.asarray(placements))
    n, t = len(graph.ops), graph.arrays.num_tensors
    for lane, placement in enumerate(placements[:, :n]):
        keys = np.asarray(made.op_keys)[:n, 0, lane], np.asarray(made.transfer_keys)[:, :t, 0, lane].T
        order = exact.decode(graph, problem, placement, *keys)
        assert exact.evaluate(graph, problem, placement, order).makespan == pytest.approx(float(values[lane]))


def test_what_does_not_fit_is_a_failure() -> None:
    limited = Problem("makespan", 2, "link", bandwidth=50.0, memory_limit=250)
    task = instance(CHAINS, limited)
    values = COSTS(task, jnp.zeros((1, len(task.leader)), jnp.int32))
    assert hdp.rewards(task, values).tolist() == [hdp.FAILURE]
    assert hdp.rewards(instance(CHAINS, LINK), jnp.float32([4.0])).tolist() == pytest.approx(
        [-2.0 * float(np.sqrt(task.graph.second_unit[0]))]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("hidden=7", "hidden is 7: must be even"),
        ("children=0", "children is 0: must be an integer from 1 to 1,024"),
        ("rate=0", "rate is 0.0: must be a number above 0"),
    ],
)
def test_bad_options_are_refused(options: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        solved(1, method=f"hdp:{options}")
