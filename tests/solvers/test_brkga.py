"""BRKGA: its invariants, generation by generation, its solvers and tuning, its Beta sampler, and known optima."""

import dataclasses
import functools
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betainc
from search_graphs import SIZES, random_dag
from shortest_makespan import optimum

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.decisions import Decisions, DeviceProblem, from_genes, num_genes
from graphrl.costs.device.evaluate import evaluate, fitness
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import PaddedGraph, Sizes, pad_batch
from graphrl.random_bits import random_words, unit_interval
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga, brkga_solver
from graphrl.solvers.chromosomes.brkga import beta_quantile, beta_table, op_proposals, run_batch, shared_betas
from graphrl.solvers.chromosomes.brkga_solver import (
    Grid,
    Setting,
    chromosome,
    decisions,
    evolve,
    solve,
    solve_random,
    solve_warm,
    stored,
    stored_setting,
    tune,
)
from graphrl.solvers.rules.list_scheduling import schedule

PROBLEM = Problem("makespan", 2, "rendezvous")
TASK = DeviceProblem.of(PROBLEM)
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
    state = _init(keys(), graph, TASK, SMALL)
    for _ in range(3):
        values = np.asarray(_fitness(graph, from_genes(state.offspring, graph.sizes, 2), TASK))
        population = np.concatenate([state.elites, state.offspring], -1)
        fitness = np.concatenate([state.elite_fitness, values], -1)
        after = _evolve(state, graph, TASK, SMALL, 1)
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
    state = _init(keys(1), batch(1), TASK, parameters)
    p = parameters.population
    rank = np.asarray(state.draw.parents)[:, 0] % p
    share = (rank < parameters.elites).mean()
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / rank.size)
    per_child = np.sort(rank, axis=0)
    assert all(len(np.unique(column)) == 2 for column in per_child.T)


def test_how_a_run_is_cut_into_calls_changes_nothing() -> None:
    graph = batch()
    whole = _evolve(_init(keys(), graph, TASK, SMALL), graph, TASK, SMALL, 6)
    parts = _init(keys(), graph, TASK, SMALL)
    for generations in (1, 2, 3):
        parts = _evolve(parts, graph, TASK, SMALL, generations)
    for a, b in zip(jax.tree.leaves(whole._replace(keys=0)), jax.tree.leaves(parts._replace(keys=0)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_best_never_gets_worse_and_no_random_word_repeats() -> None:
    graph = batch()
    state = _init(keys(), graph, TASK, SMALL)
    seen, last = set(), np.full(2, np.inf)
    for _ in range(5):
        state = _evolve(state, graph, TASK, SMALL, 1)
        assert np.all(np.asarray(state.elite_fitness[:, 0]) <= last)
        last = np.asarray(state.elite_fitness[:, 0])
        seen.update(np.asarray(state.draw.mutants).ravel().tolist())
    assert len(seen) > 0.999 * 5 * state.draw.mutants.size  # 24-bit values: a few repeat by chance


def test_a_batch_is_a_loop_over_graphs_and_over_devices() -> None:
    graph = batch()
    genes, value = run_batch(keys(), graph, PROBLEM, SMALL, 93)
    assert len(jax.devices()) == 2
    for g in range(2):
        alone = jax.tree.map(lambda x, g=g: x[g : g + 1], graph)
        one, one_value = run_batch(keys()[g : g + 1], alone, PROBLEM, SMALL, 93)
        np.testing.assert_array_equal(one[:, 0], genes[:, g])
        np.testing.assert_array_equal(one_value[0], value[g])
    single = jax.make_mesh((1,), ("g",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    np.testing.assert_array_equal(run_batch(keys(), graph, PROBLEM, SMALL, 93, mesh=single)[0], genes)


def test_padding_changes_nothing() -> None:
    wider = Sizes(ops=40, tensors=33, slots=44, rows=56, uses=80, controls=8, shares=4)
    graphs = (pad_batch([random_dag(0)], sizes) for sizes in (SIZES, wider))
    small, large = (run_batch(keys(1), graph, PROBLEM, SMALL, 93) for graph in graphs)
    assert float(small[1][0]) == float(large[1][0])
    small_genes, large_genes = (
        np.asarray(genes[: 3 * n]).reshape(3, n)[:, :30] for genes, n in ((small[0], 32), (large[0], 40))
    )
    np.testing.assert_array_equal(small_genes, large_genes)


def test_a_mesh_that_does_not_divide_the_graphs_is_refused() -> None:
    mesh = jax.make_mesh((2,), ("g",), (jax.sharding.AxisType.Auto,))
    with pytest.raises(ProblemError, match="cannot share 3 graphs"):
        run_batch(keys(3), batch(3), PROBLEM, SMALL, 9, mesh=mesh)


def test_uniform_proposals_search_as_well_as_none_and_narrow_ones_stay_where_they_point() -> None:
    graph = batch(1)
    k = num_genes(SIZES, 2)
    alpha, beta = np.full((k, 1), 800.0, np.float32), np.full((k, 1), 200.0, np.float32)
    state = _init(keys(1), graph, TASK, SMALL, beta_table(jnp.asarray(alpha), jnp.asarray(beta)))
    sampled = np.concatenate([state.offspring, state.draw.mutants], -1)
    assert np.all(np.abs(sampled - 0.8) < 0.1)
    assert abs(sampled.mean() - 0.8) < 0.002
    uniform = _init(keys(1), graph, TASK, SMALL, shared_betas([(2.0, 3.0)], 0, k, 1))
    np.testing.assert_array_equal(uniform.offspring, _init(keys(1), graph, TASK, SMALL).offspring)
    ones = jnp.ones((k, 1), jnp.float32)
    state = _init(keys(1), graph, TASK, SMALL, beta_table(ones, ones))
    assert abs(float(state.offspring.mean()) - 0.5) < 0.02


def test_known_solutions_start_the_first_population() -> None:
    graph, problem = random_dag(0), PROBLEM
    placement, order = schedule(graph, problem)
    genes = chromosome(graph, problem, SIZES, placement, order)
    again, order_again = decisions(graph, problem, SIZES, genes)
    np.testing.assert_array_equal(again, placement)
    np.testing.assert_array_equal(order_again, order)
    initial = jnp.asarray(genes)[:, None, None]
    state = _init(keys(1), batch(1), TASK, SMALL, None, initial)
    np.testing.assert_array_equal(state.offspring[:, 0, 0], genes)
    best = brkga.best(_evolve(state, batch(1), TASK, SMALL, 1))[1]
    makespan = exact.evaluate(graph, problem, placement, order).makespan
    assert float(best[0]) * float(batch(1).second_unit[0]) <= makespan * (1 + 1e-6)


def test_brkga_beats_random_search_and_neither_beats_the_bound() -> None:
    gains = []
    for seed in range(6):
        graph = random_dag(seed)
        budget, bound = Budget(evaluations=1600), lower_bound(graph, PROBLEM)
        ours, random = (method(Task(graph, PROBLEM, budget, seed, sizes=SIZES)) for method in (solve, solve_random))
        assert ours.evaluations == random.evaluations == 1600
        assert min(ours.value, random.value) >= bound * (1 - 1e-9)
        gains.append(1 - ours.value / random.value)
    assert np.mean(gains) > 0.02  # measured: 0.046


# Tuned BRKGA, BRKGA from plain plans, BRKGA with options; the grid and its stored results


def test_the_warm_start_is_never_lost() -> None:
    for problem in (PROBLEM, dataclasses.replace(PROBLEM, memory_limit=400)):
        graph = random_dag(2)
        start = exact.evaluate(graph, problem, *schedule(graph, problem))
        plan = solve_warm(Task(graph, problem, Budget(evaluations=160), 0))
        assert plan.method == "brkga+"
        assert plan.rank <= start.rank(problem)


def test_options_are_the_parameters() -> None:
    graph, budget = random_dag(0), Budget(evaluations=500)
    parameters = brkga.Parameters(50, 5, 10, 0.8)
    plan = solve(Task(graph, PROBLEM, budget, 0), population=50, elites=5, mutants=10, bias=0.8)
    assert plan.order == evolve(Task(graph, PROBLEM, budget, 0), parameters).order


def test_a_traced_bias_means_what_the_static_one_does() -> None:
    static = run_batch(keys(), batch(), PROBLEM, brkga.Parameters(20, 4, 4, 0.9), 160)
    bias = jnp.full(2, 0.9, jnp.float32)
    traced = run_batch(keys(), batch(), PROBLEM, brkga.Parameters(20, 4, 4), 160, elite_bias=bias)
    for a, b in zip(static, traced, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_grid_scores_every_setting_as_the_solver_would() -> None:
    grid = Grid(populations=(20,), elites=(0.2,), mutants=(0.1,), biases=(0.6, 0.9), shapes=(0.5, 1.0))
    graphs = [random_dag(seed) for seed in range(2)]
    scores = tune(graphs, PROBLEM, 160, grid, seed=0)
    assert len(scores) == 2 * 4
    assert len({round(score, 6) for score in scores.values()}) > 4
    setting = Setting(20, 4, 2, 0.9, 1.0, 1.0)
    values = run_batch(keys(), pad_batch(graphs), PROBLEM, brkga.Parameters(20, 4, 2, 0.9), 160)[1]
    assert scores[setting] == pytest.approx(float(np.exp(np.log(np.asarray(values)).mean())), rel=0.02)


def test_what_is_stored_is_of_the_grid_and_says_how_it_was_found() -> None:
    grid = stored()["grid"]
    assert set(stored()["settings"]) == {"makespan", "peak_memory"}
    for objective in stored()["settings"]:
        setting = stored_setting(objective)
        brkga.Parameters(setting.population, setting.elites, setting.mutants, setting.elite_bias)
        assert setting.population in grid["populations"]
        assert {setting.alpha, setting.beta} <= set(grid["shapes"])
    assert {"command", "date", "seed", "graphs", "evaluations"} <= set(stored())


def test_the_proposals_of_the_solver_are_the_stored_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = random_dag(0), Budget(evaluations=500)
    settings: dict[str, Any] = {"settings": {"makespan": dataclasses.asdict(Setting(50, 5, 10, 0.8, 0.5, 2.0))}}
    monkeypatch.setattr(brkga_solver, "stored", lambda: settings)
    parameters = brkga.Parameters(50, 5, 10, 0.8)
    proposals = partial(op_proposals, [(0.5, 2.0)], devices=PROBLEM.devices, graphs=1)
    expected = evolve(Task(graph, PROBLEM, budget, 0), parameters, proposals=proposals)
    assert brkga_solver.solve_tuned(Task(graph, PROBLEM, budget, 0)).order == expected.order
    assert expected.order != evolve(Task(graph, PROBLEM, budget, 0), parameters).order


# The tabulated Beta sampler against the distribution itself


SHAPES = [(1, 1), (0.3, 2), (2, 2), (0.5, 0.5), (5, 1), (30, 70), (200, 200), (1000, 3), (0.2, 0.6)]


def test_quantiles_have_the_right_distribution() -> None:
    alpha, beta = (jnp.asarray([[pair[i]] for pair in SHAPES], jnp.float32) for i in (0, 1))
    uniform = (jnp.arange(4000, dtype=jnp.float32) + 0.5) / 4000
    wanted = jnp.broadcast_to(uniform, (len(SHAPES), 1, 4000))
    quantiles = jax.jit(lambda *shape: beta_quantile(beta_table(*shape), wanted))(alpha, beta)
    assert bool(jnp.all((quantiles >= 0) & (quantiles < 1)))
    assert bool(jnp.all(jnp.diff(quantiles, axis=-1) >= 0))
    below = betainc(alpha[..., None], beta[..., None], np.asarray(quantiles, np.float64))
    # float32 cannot resolve values near 1: there a distribution with much mass at 1 looks discrete
    inside = quantiles < 1 - 1e-6
    assert np.abs(np.where(inside, below - np.asarray(wanted), 0.0)).max() < 0.003


def test_uniform_words_are_uniform_and_independent() -> None:
    seeds = jax.random.bits(jax.random.key(0), (3, 2))
    words = np.asarray(random_words(seeds, 500, 64))
    values = np.asarray(unit_interval(jnp.asarray(words)), np.float64)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, 64, (0, 1))[0]
    expected = values.size / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 5 * np.sqrt(2 * 63)
    bits = ((words[..., None] >> np.arange(32, dtype=np.uint32)) & 1).mean((0, 1, 2))
    assert np.all(np.abs(bits - 0.5) < 5 * 0.5 / np.sqrt(words.size))
    for axis in (0, 1, 2):  # neighbours along genes, graphs and lanes are uncorrelated
        a, b = (np.take(values, range(k, values.shape[axis] - 1 + k), axis).ravel() for k in (0, 1))
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)


# P|prec|Cmax: under free transfers of zero cost, all keys together reach the optimum of an independent solver


TINY_SIZES = Sizes(ops=16, tensors=16, slots=16, rows=16, uses=24, controls=0, shares=0)


@jax.jit
def makespans(graph, decisions: Decisions, problem: DeviceProblem) -> jax.Array:  # type: ignore[no-untyped-def]
    return evaluate(graph, decisions, problem, memory=False).makespan * graph.second_unit[:, None]


def every_solution(ops: int, devices: int) -> Decisions:
    """All placements with all orders of keys; transfers go first."""
    placements = np.array(list(itertools.product(range(devices), repeat=ops)))
    orders = np.array(list(itertools.permutations(range(ops)))) / ops
    placement = np.zeros((TINY_SIZES.ops, 1, len(placements) * len(orders)), np.int32)
    keys = np.zeros(placement.shape, np.float32)
    placement[:ops, 0] = np.repeat(placements, len(orders), 0).T
    keys[:ops, 0] = np.tile(orders, (len(placements), 1)).T
    transfers = np.full((devices, TINY_SIZES.tensors, 1, placement.shape[2]), 0.999, np.float32)
    return Decisions(jnp.asarray(placement), jnp.asarray(keys), jnp.asarray(transfers))


def test_an_exhaustive_search_over_keys_finds_the_optimum() -> None:
    ops = 5
    problem, solutions = Problem("makespan", 2, "free"), every_solution(ops, 2)
    gaps = 0
    for seed in range(12):
        graph = random_dag(seed, ops)
        padded = jax.tree.map(jnp.asarray, pad_batch([graph], TINY_SIZES))
        values = np.asarray(makespans(padded, solutions, DeviceProblem.of(problem)), np.float64)
        best, bound = optimum(graph, 2), lower_bound(graph, problem)
        assert values.min() == best
        assert bound <= best + 1e-9
        gaps += values.max() > best
    assert gaps >= 8  # on most graphs solutions differ (not on chains), so a search can improve


def test_search_over_keys_finds_the_optimum_of_graphs_too_large_to_enumerate() -> None:
    problem = Problem("makespan", 3, "free")
    for seed in range(4):
        graph = random_dag(100 + seed, 9)
        plan = solve(Task(graph, problem, Budget(evaluations=4000), seed))
        assert plan.value == optimum(graph, 3)
