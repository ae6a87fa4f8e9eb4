"""What `Compile-v0` shows of the schedule that was played: the figures of the exact twin and the plain NumPy of the
script that found them useful, whatever the padding and however it is mapped.
"""

import dataclasses
import functools
import itertools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import KEY, LEVELS, padded, random_choices
from fusion_graphs import CHIP, chain_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from reproduce.go import views

import graphrl
from graphrl.costs import exact
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.features import DEVICE_TIMES, OP_TIMES, Played, played, played_on_host
from graphrl.envs.compile.generator import Choices, CompileParams, instance
from graphrl.envs.compile.reward import run
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.solvers.sending.plans import with_sends

SIZES = Sizes(ops=48, tensors=96, slots=144, rows=192, uses=256, controls=64, shares=32)
WIDER = Sizes(ops=64, tensors=128, slots=192, rows=256, uses=320, controls=96, shares=64)
GRAPH = regal_like(3, num_ops=40)
MODES = list(itertools.product(("link", "free", "rendezvous"), ("urgent", "rule")))


def devices_of(transfer: str, sends: str) -> int:
    """Of more than two the device breaks ties between bundled sends by tensor, the host by pair."""
    return 2 if (transfer, sends) == ("rendezvous", "rule") else 3


def problem_of(transfer: Any, sends: str = "urgent") -> Problem:
    return Problem("makespan", devices_of(transfer, sends), transfer, latency=0.5, bandwidth=5.0)


def params_of(graph: ComputationGraph, transfer: Any, sends: str, to: Sizes | None = SIZES) -> CompileParams:
    return instance(graph, problem_of(transfer, sends), to, levels=LEVELS, baseline=1.0)


@functools.cache
def step(sends: Any) -> Any:
    env = graphrl.make("Compile-v0", sends=sends)

    def observed(params: CompileParams, action: dict[str, jax.Array]) -> Played:
        state = env.reset(KEY, params)[0]
        played: Played = env.step(KEY, state, action, params)[1].observation.played
        return played

    return jax.jit(observed)


def expected(graph: ComputationGraph, transfer: Any, sends: str, choices: Choices) -> np.ndarray:
    """Rows of all pairs, of the run that the exact twin says; see `views.played`."""
    problem, a = problem_of(transfer, sends), graph.arrays
    n, devices, placement = a.num_ops, problem.devices, np.asarray(choices.placement)
    keys = ((choices.priority * n + n - 1 - a.rank) / (LEVELS * n)).astype(np.float32)
    transfers = np.zeros((a.num_tensors, devices), np.float32)
    np.maximum.at(transfers, (a.use_tensor, placement[a.use_op]), keys[a.use_op])
    if sends == "rule":
        alone = dataclasses.replace(problem, devices=1)
        ops = exact.decode(graph, alone, np.zeros(n, np.int64), keys, np.zeros((a.num_tensors, 1), np.float32))
        order = with_sends(graph, problem, placement, ops)
    else:
        order = exact.decode(graph, problem, placement, keys, transfers)
    costs, end = exact.evaluate(graph, problem, placement, order), np.empty(n)
    end[order[order < n]] = costs.end[order < n]
    case: Any = SimpleNamespace(graph=graph, devices=devices, ops=n, placement=placement, makespan=costs.makespan)
    case.order, case.end, case.start = order[order < n], end, end - a.runtime
    return views.played(case)


def rows_of(played: Played, placement: np.ndarray) -> np.ndarray:
    """The same rows of what the environment shows."""
    n, ops, pairs = len(placement), np.asarray(played.ops), np.asarray(played.devices)
    of_ops = np.repeat(ops[:n, None], pairs.shape[1], 1)
    own = pairs[np.arange(n), placement][:, None]
    return np.concatenate([of_ops, pairs[:n], pairs[:n] - own], -1)


@pytest.mark.parametrize(("transfer", "sends"), MODES)
@settings(max_examples=30)
@given(graph=graphs(max_ops=12), seed=st.integers(0, 99))
def test_it_is_what_the_exact_twin_did(transfer: Any, sends: Any, graph: ComputationGraph, seed: int) -> None:
    if graph.arrays.runtime.sum() == 0:
        return  # parts of nothing
    choices = random_choices(graph, devices_of(transfer, sends), seed)
    played = step(sends)(params_of(graph, transfer, sends), padded(choices, SIZES.ops))
    rows = rows_of(played, np.asarray(choices.placement))
    np.testing.assert_allclose(rows, expected(graph, transfer, sends, choices), atol=2e-4)
    assert not np.asarray(played.ops)[len(graph.ops) :].any()
    assert not np.asarray(played.devices)[len(graph.ops) :].any()


@settings(max_examples=50)
@given(graph=graphs(max_ops=12), devices=st.integers(1, 3), seed=st.integers(0, 99))
def test_on_the_host_it_is_the_same(graph: ComputationGraph, devices: int, seed: int) -> None:
    if graph.arrays.runtime.sum() == 0:
        return
    problem = dataclasses.replace(problem_of("link"), devices=devices)
    params = instance(graph, problem, SIZES, levels=LEVELS, baseline=1.0)
    choices = random_choices(graph, devices, seed)
    ran, n = run(params, Choices(**padded(choices, SIZES.ops))), len(graph.ops)
    seconds, place = np.asarray(ran.end, np.float64)[:n] * ran.graph.second_unit, np.asarray(ran.place, np.int64)[:n]
    on_host = played_on_host(graph, np.asarray(choices.placement, np.int64), place, seconds, devices, SIZES.ops)
    on_device = played(ran.graph, ran.placement, ran.place, ran.end, devices)
    for name in Played._fields:
        np.testing.assert_allclose(getattr(on_host, name), getattr(on_device, name), atol=2e-4)


@pytest.mark.parametrize(("transfer", "sends"), [("link", "urgent"), ("rendezvous", "rule")])
def test_padding_changes_nothing_and_mapped_it_is_a_loop(transfer: Any, sends: Any) -> None:
    choices = [random_choices(GRAPH, devices_of(transfer, sends), seed) for seed in range(3)]
    params = params_of(GRAPH, transfer, sends)
    actions = [padded(one, SIZES.ops) for one in choices]
    each = [step(sends)(params, action) for action in actions]
    mapped = jax.vmap(step(sends), (None, 0))(params, jax.tree.map(lambda *rows: jnp.stack(rows), *actions))
    wide = step(sends)(params_of(GRAPH, transfer, sends, WIDER), padded(choices[0], WIDER.ops))
    n = len(GRAPH.ops)
    for i, one in enumerate(each):
        rows = rows_of(one, np.asarray(choices[i].placement))
        np.testing.assert_allclose(rows, expected(GRAPH, transfer, sends, choices[i]), atol=2e-4)
        for name in Played._fields:
            np.testing.assert_allclose(getattr(mapped, name)[i], getattr(one, name), atol=1e-6)
    for name in Played._fields:
        np.testing.assert_allclose(getattr(wide, name)[:n], getattr(each[0], name)[:n], atol=1e-6)
    assert each[0].ops.shape == (SIZES.ops, OP_TIMES)
    assert each[0].devices.shape == (SIZES.ops, devices_of(transfer, sends), DEVICE_TIMES)


def test_before_anything_is_chosen_nothing_was_played() -> None:
    start = random_choices(GRAPH, 3, 0)
    env = graphrl.make("Compile-v0")
    nothing, begun = (
        env.reset(KEY, instance(GRAPH, problem_of("link"), levels=LEVELS, baseline=1.0, start=one))[1].observation
        for one in (None, start)
    )
    assert not any(np.asarray(of).any() for of in nothing.played)
    rows = rows_of(begun.played, np.asarray(start.placement))
    np.testing.assert_allclose(rows, expected(GRAPH, "link", "urgent", start), atol=2e-4)


def test_of_kernels_it_is_known_what_their_roots_did() -> None:
    """Three ops in a row of which two are inlined in the last: that one has the whole run, they have nothing."""
    fusion = fusion_problem(chain_graph("exp mul exp"), CHIP)
    tasks = ("placement", "priority", "fusion")
    env = graphrl.make("Compile-v0", tasks=tasks)
    params = instance(fusion.graph, problem_of("link"), fusion=fusion, baseline=1.0)
    zero, state = jnp.zeros(len(params.order), jnp.int32), env.reset(KEY, params)[0]

    def ends(level: int) -> np.ndarray:
        action = {"placement": zero, "priority": zero, "fusion": zero + level}
        return np.asarray(env.step(KEY, state, action, params)[1].observation.played.ops)[:3, 1]

    np.testing.assert_allclose(ends(0), [1 / 3, 2 / 3, 1], atol=1e-6)
    np.testing.assert_allclose(ends(1), [0, 0, 1], atol=1e-6)
