"""The two forms of the decoder, rows (for CPUs) and dense (for GPUs and TPUs), give the same orders and times."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest
from device_graphs import PROBLEMS, SIZES, compiled, random_decisions, random_graphs

from graphrl.costs.device import decode, decode_dense, evaluate
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.decode import num_events, slot_layout
from graphrl.costs.device.lanes import implied, node_count
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import PaddedGraph, pad_batch

GRAPHS, LANES = 12, 10


def test_dense_steps_come_without_gaps() -> None:
    """An idle step always writes the same event, and comes after all other steps."""
    problem = PROBLEMS[3]
    rng = np.random.default_rng(1)
    padded = pad_batch(random_graphs(rng, GRAPHS), SIZES)
    costs = compiled(problem, "dense")(padded, random_decisions(rng, GRAPHS, LANES, problem.devices))
    idle = node_count(SIZES, problem.devices) * problem.devices
    events = np.asarray(costs.events)
    assert (events[decode_dense.num_events(SIZES, problem.devices) :] == idle).all()
    assert events.max() == idle
    assert (np.diff((events == idle).astype(int), axis=0) >= 0).all()


def test_rows_with_fixed_trips_give_the_same() -> None:
    """As a GPU runs large graphs: the greatest possible number of steps, needed or not."""
    problem = PROBLEMS[6]
    rng = np.random.default_rng(2)
    padded = pad_batch(random_graphs(rng, GRAPHS), SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)

    @functools.partial(jax.jit, static_argnames="fixed_trips")
    def schedule(graph: PaddedGraph, decisions: Decisions, fixed_trips: bool) -> decode.Schedule:
        lanes = implied(graph, decisions, problem.devices)
        durations = evaluate.node_seconds(graph, DeviceProblem.of(problem))
        return decode.schedule(graph, lanes, problem.devices, problem.transfer, durations, fixed_trips=fixed_trips)

    few, all_steps = schedule(padded, decisions, False), schedule(padded, decisions, True)
    idle = node_count(SIZES, problem.devices)
    np.testing.assert_array_equal(
        np.minimum(few.events // problem.devices, idle), np.minimum(all_steps.events // problem.devices, idle)
    )
    np.testing.assert_array_equal(few.makespan, all_steps.makespan)


def test_an_op_may_read_several_tensors_of_one_producer_and_wait_for_it() -> None:
    """Counts add up in one entry of the dense matrix; the transfers of each tensor are separate nodes."""
    outputs = tuple(Tensor(f"t{k}", 1) for k in range(5))
    graph = ComputationGraph(
        "many",
        (
            Op("reads", runtime=1, inputs=tuple(tensor.name for tensor in outputs), after=("makes",)),
            Op("makes", runtime=2, outputs=outputs),
        ),
    )
    padded = pad_batch([graph], SIZES)
    decisions = random_decisions(np.random.default_rng(0), 1, 2, 2)
    np.asarray(decisions.placement)[:2, 0, 0] = 0, 0
    np.asarray(decisions.placement)[:2, 0, 1] = 1, 0
    problem = PROBLEMS[3]
    for form in ("rows", "dense"):
        costs = compiled(problem, form)(padded, decisions)
        assert (costs.makespan[0] * padded.second_unit[0]).tolist() == [3.0, 3 + 5 * (0.5 + 1 / 4)]


# Form and platform


@pytest.mark.parametrize(
    ("platform", "ops", "form"),
    [
        ("cpu", 24, "host"),
        ("cuda", 24, "dense"),
        ("cuda", 2 * evaluate.DENSE_OPS, "rows, all steps"),
        ("tpu", 2 * evaluate.DENSE_OPS, "dense"),
    ],
)
def test_the_platform_that_a_program_is_lowered_for_chooses_the_form(platform: str, ops: int, form: str) -> None:
    """Independent of the default backend: a machine with a GPU also runs programs on its CPU."""
    to = dataclasses.replace(SIZES, ops=ops, slots=ops + 24, rows=ops + 48, uses=61)
    padded = pad_batch([ComputationGraph("one", (Op("a"),))], to)
    decisions = random_decisions(np.random.default_rng(0), 1, LANES, 2, to)
    problem = DeviceProblem.of(Problem("makespan", 2))
    traced = jax.jit(functools.partial(evaluate.evaluate, memory=False)).trace(padded, decisions, problem)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("graphrl_costs" in text) == (form == "host")
    assert (f"tensor<{LANES}x{to.slots}xi16>" in text) == (form == "dense")
    assert (f"tensor<{slot_layout(to)[0] * LANES}xi32>" in text) == form.startswith("rows")
    trips = re.findall(r"cond \{\s*%\w+ = stablehlo.constant dense<(\d+)> : tensor<i32>", text)
    assert (str(num_events(to, 2)) in trips) == (form == "rows, all steps")
