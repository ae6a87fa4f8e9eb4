"""BRKGA: its invariants, generation by generation, and what the solvers make of it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import SIZES, random_dag

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.decisions import Decisions, DeviceProblem, from_genes, num_genes, to_genes
from graphrl.costs.device.evaluate import fitness
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes, pad_batch
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.brkga import beta_table, run_batch, shared_betas
from graphrl.solvers.chromosomes.brkga_solver import chromosome, decisions, solve, solve_random
from graphrl.solvers.rules.list_scheduling import schedule

PROBLEM = Problem("makespan", 2, "rendezvous")
MEMORY = Problem("peak_memory", 2, "free")
MAKESPAN_TASK, MEMORY_TASK = DeviceProblem.of(PROBLEM), DeviceProblem.of(MEMORY)
SMALL = brkga.Parameters(population=12, elites=3, mutants=2)

_init = jax.jit(brkga.init, static_argnames=("parameters",))
_evolve = jax.jit(brkga.evolve, static_argnames=("parameters",))
_fitness = jax.jit(fitness)


@functools.cache
def batch(count: int = 2) -> PaddedGraph:
    return jax.tree.map(jnp.asarray, pad_batch([random_dag(seed) for seed in range(count)], SIZES))


def keys(count: int = 2, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def test_a_generation_keeps_the_best_and_makes_children_of_an_elite_and_another_parent() -> None:
    graph = batch()
    state = _init(keys(), graph, MAKESPAN_TASK, SMALL)
    for _ in range(3):
        values = np.asarray(_fitness(graph, from_genes(state.offspring, graph.sizes, 2), MAKESPAN_TASK))
        population = np.concatenate([state.elites, state.offspring], -1)
        fitness = np.concatenate([state.elite_fitness, values], -1)
        after = _evolve(state, graph, MAKESPAN_TASK, SMALL, 1)
        for g in range(2):
            rank = np.argsort(fitness[g], kind="stable")
            np.testing.assert_array_equal(after.elites[:, g], population[:, g, rank[:3]])
            np.testing.assert_array_equal(after.elite_fitness[g], fitness[g, rank[:3]])
            np.testing.assert_array_equal(after.offspring[:, g, :2], state.draw.mutants[:, g])
            elites, others = population[:, g, rank[:3]], population[:, g, rank[3:]]
            for child in np.asarray(after.offspring[:, g, 2:]).T:
                pairs = [
                    np.all((child == a) | (child == b)) and np.any(child == a)
                    for a, b in itertools.product(elites.T, others.T)
                ]
                assert any(pairs)
        state = after


def test_genes_come_from_the_elite_parent_with_the_bias() -> None:
    parameters = brkga.Parameters(population=102, elites=2, mutants=0, elite_bias=0.8)
    state = _init(keys(1), batch(1), MAKESPAN_TASK, parameters)
    p = parameters.population
    rank = np.asarray(state.draw.parents)[:, 0] % p
    share = (rank < parameters.elites).mean()
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / rank.size)
    per_child = np.sort(rank, axis=0)
    assert all(len(np.unique(column)) == 2 for column in per_child.T)


def test_how_a_run_is_cut_into_calls_changes_nothing() -> None:
    graph = batch()
    whole = _evolve(_init(keys(), graph, MEMORY_TASK, SMALL), graph, MEMORY_TASK, SMALL, 6)
    parts = _init(keys(), graph, MEMORY_TASK, SMALL)
    for generations in (1, 2, 3):
        parts = _evolve(parts, graph, MEMORY_TASK, SMALL, generations)
    for a, b in zip(jax.tree.leaves(whole._replace(keys=0)), jax.tree.leaves(parts._replace(keys=0)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_best_never_gets_worse_and_no_random_word_repeats() -> None:
    graph = batch()
    state = _init(keys(), graph, MEMORY_TASK, SMALL)
    seen, last = set(), np.full(2, np.inf)
    for _ in range(5):
        state = _evolve(state, graph, MEMORY_TASK, SMALL, 1)
        assert np.all(np.asarray(state.elite_fitness[:, 0]) <= last)
        last = np.asarray(state.elite_fitness[:, 0])
        seen.update(np.asarray(state.draw.mutants).ravel().tolist())
    assert len(seen) > 0.999 * 5 * state.draw.mutants.size  # 24-bit values: a few repeat by chance


def test_a_batch_is_a_loop_over_graphs_and_over_devices() -> None:
    graph, parameters = batch(4), brkga.Parameters(population=20, elites=4, mutants=4)
    genes, value = run_batch(keys(4), graph, MEMORY, parameters, 160)
    assert len(jax.devices()) == 2
    for g in range(4):
        alone = jax.tree.map(lambda x, g=g: x[g : g + 1], graph)
        one, one_value = run_batch(keys(4)[g : g + 1], alone, MEMORY, parameters, 160)
        np.testing.assert_array_equal(one[:, 0], genes[:, g])
        np.testing.assert_array_equal(one_value[0], value[g])
    single = jax.make_mesh((1,), ("g",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    np.testing.assert_array_equal(run_batch(keys(4), graph, MEMORY, parameters, 160, mesh=single)[0], genes)


def test_padding_changes_nothing() -> None:
    wider = Sizes(ops=40, tensors=33, slots=44, rows=56, uses=80, controls=8, shares=4)
    parameters = brkga.Parameters(population=20, elites=4, mutants=4)
    problem = Problem("peak_memory", 3, "free")
    graphs = (pad_batch([random_dag(0)], sizes) for sizes in (SIZES, wider))
    small, large = (run_batch(keys(1), graph, problem, parameters, 160) for graph in graphs)
    assert float(small[1][0]) == float(large[1][0])
    small_genes, large_genes = (
        np.asarray(genes[: 4 * n]).reshape(4, n)[:, :30] for genes, n in ((small[0], 32), (large[0], 40))
    )
    np.testing.assert_array_equal(small_genes, large_genes)


def test_a_mesh_that_does_not_divide_the_graphs_is_refused() -> None:
    mesh = jax.make_mesh((2,), ("g",), (jax.sharding.AxisType.Auto,))
    with pytest.raises(ProblemError, match="cannot share 3 graphs"):
        run_batch(keys(3), batch(3), MEMORY, SMALL, 9, mesh=mesh)


def test_uniform_proposals_search_as_well_as_none_and_narrow_ones_stay_where_they_point() -> None:
    graph = batch(1)
    k = num_genes(SIZES, 2)
    alpha, beta = np.full((k, 1), 800.0, np.float32), np.full((k, 1), 200.0, np.float32)
    state = _init(keys(1), graph, MEMORY_TASK, SMALL, beta_table(jnp.asarray(alpha), jnp.asarray(beta)))
    sampled = np.concatenate([state.offspring, state.draw.mutants], -1)
    assert np.all(np.abs(sampled - 0.8) < 0.1)
    assert abs(sampled.mean() - 0.8) < 0.002
    uniform = _init(keys(1), graph, MEMORY_TASK, SMALL, shared_betas([(2.0, 3.0)], 0, k, 1))
    np.testing.assert_array_equal(uniform.offspring, _init(keys(1), graph, MEMORY_TASK, SMALL).offspring)
    ones = jnp.ones((k, 1), jnp.float32)
    state = _init(keys(1), graph, MEMORY_TASK, SMALL, beta_table(ones, ones))
    assert abs(float(state.offspring.mean()) - 0.5) < 0.02


def test_known_solutions_start_the_first_population() -> None:
    graph, problem = random_dag(0), PROBLEM
    placement, order = schedule(graph, problem)
    genes = chromosome(graph, problem, SIZES, placement, order)
    again, order_again = decisions(graph, problem, SIZES, genes)
    np.testing.assert_array_equal(again, placement)
    np.testing.assert_array_equal(order_again, order)
    initial = jnp.asarray(genes)[:, None, None]
    state = _init(keys(1), batch(1), MAKESPAN_TASK, SMALL, None, initial)
    np.testing.assert_array_equal(state.offspring[:, 0, 0], genes)
    best = brkga.best(_evolve(state, batch(1), MAKESPAN_TASK, SMALL, 1))[1]
    makespan = exact.evaluate(graph, problem, placement, order).makespan
    assert float(best[0]) * float(batch(1).second_unit[0]) <= makespan * (1 + 1e-6)


def test_decisions_and_genes_are_inverse() -> None:
    rng = np.random.default_rng(0)
    n, t = SIZES.ops, SIZES.tensors
    solutions = Decisions(
        jnp.asarray(rng.integers(0, 3, (n, 1, 4)), jnp.int32),
        jnp.asarray(rng.random((n, 1, 4)), jnp.float32),
        jnp.asarray(rng.random((3, t, 1, 4)), jnp.float32),
    )
    again = from_genes(to_genes(solutions, 3), SIZES, 3)
    for a, b in zip(jax.tree.leaves(solutions), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("evaluations", "spent"), [(1, 1), (500, 480)])
def test_evaluations_are_counted_exactly(evaluations: int, spent: int) -> None:
    for method in (solve, solve_random):
        plan = method(Task(random_dag(1), MEMORY, Budget(evaluations=evaluations), 0))
        assert plan.evaluations == spent
        plan.check(random_dag(1))


def test_brkga_beats_random_search_and_neither_beats_the_bound() -> None:
    gains = []
    for seed in range(6):
        graph = random_dag(seed)
        budget, bound = Budget(evaluations=1600), lower_bound(graph, PROBLEM)
        ours, random = (m(Task(graph, PROBLEM, budget, seed, sizes=SIZES)).value for m in (solve, solve_random))
        assert min(ours, random) >= bound * (1 - 1e-9)
        gains.append(1 - ours / random)
    assert np.mean(gains) > 0.02  # measured: 0.046


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"elites": 0}, "elites is 0: must be from 1 to population - 1 = 99"),
        ({"elites": 100}, "elites is 100"),
        ({"mutants": 81}, "mutants is 81: must be from 0 to population - elites = 80"),
        ({"elite_bias": 0.4}, "elite_bias is 0.4: must be from 0.5 to 1"),
    ],
)
def test_parameters_out_of_range_are_refused(fields: dict, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        brkga.Parameters(**fields)
