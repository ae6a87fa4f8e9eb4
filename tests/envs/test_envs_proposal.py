"""Proposal-v0: its codings, its rewards, and batches that equal a loop over single graphs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import random_dag

from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.envs import proposal as codings
from graphrl.envs import specs
from graphrl.envs.proposal import ProposalEnv, ProposalInstance, make_instance, make_instances, reward
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes
from graphrl.solvers.chromosomes.brkga import UNIFORM, Parameters, beta_quantile, run_batch

KEY = jax.random.key(0)
SMALL = Parameters(population=12, elites=3, mutants=3)
SIZES = Sizes(ops=12, tensors=12, slots=12, rows=20, uses=24, controls=0, shares=0)
WIDER = Sizes(ops=16, tensors=14, slots=20, rows=28, uses=32, controls=3, shares=2)
MAKESPAN = Problem("makespan", 2)


def env(problem: Problem = MAKESPAN, coding: codings.CodingName = "moments") -> ProposalEnv:
    return ProposalEnv(problem, 45, SMALL, coding)


@functools.cache
def compiled(environment: ProposalEnv) -> tuple[Any, Any]:
    return jax.jit(environment.reset), jax.jit(environment.step)


@functools.cache
def batch() -> ProposalInstance:
    return make_instances([random_dag(seed, 10) for seed in range(4)], SIZES)


def one(i: int = 0) -> ProposalInstance:
    return jax.tree.map(lambda x: x[i], batch())


@pytest.mark.parametrize("name", ["moments", "shapes"])
def test_an_action_says_the_distribution_of_every_gene(name: codings.CodingName) -> None:
    coding = codings.coding(name)
    spec = coding.action_spec(12, 2)
    action = specs.sample(spec, KEY)
    table = codings.to_beta_table(codings.gene_choices(action, coding, one().graph, 2)[:, None], coding)
    choice = np.asarray(table.choice)[:, 0]
    assert choice.shape == (3 * 12 + 2 * 12,)
    assert np.all(choice[36:] == UNIFORM)
    for gene, op in ((0, 3), (1, 5), (2, 11)):
        index = int(np.ravel_multi_index(tuple(np.atleast_1d(action[op, gene])), coding.heads))
        shape = coding.alpha[index], coding.beta[index]
        row = choice[gene * 12 + op]
        assert row == (UNIFORM if shape == (1, 1) else index)
    uniform = jnp.broadcast_to((jnp.arange(20000, dtype=jnp.float32) + 0.5) / 20000, (60, 1, 20000))
    values = np.asarray(beta_quantile(table, uniform), np.float64)[:36, 0]
    a, b = (np.array(side)[np.where(choice[:36] < 0, 0, choice[:36])] for side in (coding.alpha, coding.beta))
    a, b = (np.where(choice[:36] < 0, 1, side) for side in (a, b))
    np.testing.assert_allclose(values.mean(1), a / (a + b), atol=0.004)
    np.testing.assert_allclose(values.var(1), a * b / (a + b) ** 2 / (a + b + 1), rtol=0.07)


@pytest.mark.parametrize("name", ["moments", "shapes"])
def test_keys_of_transfers_may_have_the_distribution_of_their_first_reader(name: codings.CodingName) -> None:
    coding, graph = codings.coding(name), random_dag(0, 10)
    action = specs.sample(coding.action_spec(12, 2), KEY)
    ops = np.asarray(codings.op_choices(action, coding))[-1]
    genes = np.asarray(codings.gene_choices(action, coding, one().graph, 2, "readers"))
    keys = genes[3 * 12 :].reshape(2, 12)
    np.testing.assert_array_equal(keys[0], keys[1])
    a = graph.arrays
    for t in range(len(a.tensor_bytes)):
        means = [coding.means[choice] for choice in ops[a.use_op[a.use_tensor == t]] if choice != UNIFORM]
        assert (keys[0, t] == UNIFORM) == (not means)
        assert not means or coding.means[keys[0, t]] == max(means)
    uniform = jnp.broadcast_to(jnp.array(coding.uniform, jnp.int32).squeeze(), action.shape)
    assert np.all(np.asarray(codings.gene_choices(uniform, coding, one().graph, 2, "readers")) == UNIFORM)


def test_codings_hold_the_uniform_and_only_distributions_that_exist() -> None:
    for name in ("moments", "shapes"):
        coding = codings.coding(name)
        a, b = np.array(coding.alpha), np.array(coding.beta)
        place = np.ravel_multi_index(coding.uniform, coding.heads)
        assert (a[place], b[place]) == (1, 1)
        mean, variance = a / (a + b), a * b / (a + b) ** 2 / (a + b + 1)
        assert np.all(variance < mean * (1 - mean))
        assert min(a.min(), b.min()) >= 0.05
    assert codings.coding("moments").values == 16  # ICLR, section 4
    with pytest.raises(ProblemError, match="coding is 'both': must be one of moments, shapes"):
        env(coding="both")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="evaluations is 5: must be at least a generation's 80"):
        ProposalEnv(evaluations=5)
    with pytest.raises(ProblemError, match="transfer_keys is 'none': must be one of uniform, readers"):
        ProposalEnv(transfer_keys="none")  # type: ignore[arg-type]


def test_it_passes_the_conformance_suite_whatever_it_is_padded_to() -> None:
    wider = make_instance(random_dag(0, 10), WIDER)
    check_env(env(Problem("peak_memory", 3), "shapes"), one(), wider=wider, copies=2)


def test_the_uniform_action_is_standard_brkga_exactly() -> None:
    environment = env()
    spec = environment.action_spec(one())
    uniform = jnp.broadcast_to(jnp.int32(environment.distributions.uniform[0]), spec.shape)
    reset, step = compiled(environment)
    state, first = reset(KEY, one())
    _, timestep = step(KEY, state, uniform, one())
    assert float(timestep.reward) == -1
    assert float(timestep.info["objective"]) == float(first.info["standard"])
    assert bool(timestep.terminated)


@functools.cache
def _many() -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(KEY, 4)
    return keys, jax.vmap(lambda key: specs.sample(env().action_spec(one()), key))(jax.random.split(keys[0], 4 * 3))


def test_many_at_once_are_a_loop_over_one_and_what_run_batch_finds() -> None:
    """Three actions for each of four graphs: vmap in vmap, with keys, graphs and actions mapped at different levels."""
    environment, (keys, actions) = env(), _many()
    by_graph = actions.reshape(4, 3, *actions.shape[1:])
    states, _ = jax.jit(jax.vmap(environment.reset))(keys, batch())
    over_actions = jax.vmap(environment.step, (None, None, 0, None))
    timesteps = jax.jit(jax.vmap(over_actions))(keys, states, by_graph, batch())[1]
    step = compiled(environment)[1]
    for g, a in ((0, 0), (1, 2), (3, 1)):
        state = jax.tree.map(lambda x, g=g: x[g], states)
        alone = step(keys[g], state, by_graph[g, a], one(g))[1]
        np.testing.assert_array_equal(alone.info["objective"], timesteps.info["objective"][g, a])
        np.testing.assert_allclose(alone.reward, timesteps.reward[g, a], rtol=1e-6)
    genes = functools.partial(codings.gene_choices, coding=environment.distributions, devices=2)
    choice = jax.vmap(lambda action, graph: genes(action, graph=graph))(by_graph[:, 0], batch().graph)
    table = codings.to_beta_table(choice.T, environment.distributions)
    values = run_batch(keys, batch().graph, MAKESPAN, SMALL, 45, table)[1]
    np.testing.assert_array_equal(values * batch().graph.second_unit, timesteps.info["objective"][:, 0])


def test_proposals_that_say_the_answer_find_it() -> None:
    """Two chains of equal work: one on each device is optimal, and only proposals distinguish the chains' ops."""
    ops = [
        Op(f"{chain}{i}", runtime=1.0, inputs=(f"{chain}{i - 1}",) if i else (), outputs=(Tensor(f"{chain}{i}", 1),))
        for chain in "ab"
        for i in range(5)
    ]
    instance = make_instance(ComputationGraph("chains", tuple(ops)), SIZES)
    environment = env()
    low, high = 1 + 2 * 5, 1 + 2 * 5 + 4  # the narrowest distributions around 0.1 and 0.9
    action = jnp.zeros((12, 3), jnp.int32).at[:5, :2].set(jnp.array([high, low], jnp.int32))
    action = action.at[5:10, :2].set(jnp.array([low, high], jnp.int32))
    reset, step = compiled(environment)
    state, _ = reset(KEY, instance)
    _, timestep = step(KEY, state, action, instance)
    assert float(timestep.info["objective"]) == 5
    assert float(timestep.info["standard"]) > 5
    assert float(timestep.reward) > -1


def test_what_does_not_fit_the_memory_limit_earns_less_than_anything_that_does() -> None:
    problem = Problem("makespan", 2, memory_limit=40)
    graph = jax.tree.map(jnp.asarray, one().graph)
    work = float(graph.runtime.sum())
    earned = functools.partial(reward, graph=graph, problem=DeviceProblem.of(problem))
    standard = jnp.float32(-1 / work)  # fits, and takes as long as everything on one device
    fits, over, far_over = (float(earned(jnp.float32(x), standard)) for x in (-2 / work, 1e-3, 2.0))
    assert 0 > fits > -1 > over > far_over
    assert -1 < float(earned(standard, jnp.float32(1e3))) < 0
    impossible = env(Problem("makespan", 2, memory_limit=1))
    state, _ = jax.jit(impossible.reset)(KEY, one())
    timestep = jax.jit(impossible.step)(KEY, state, _many()[1][0], one())[1]
    assert np.isinf(timestep.info["objective"])
    assert np.isfinite(timestep.reward)


def test_a_graph_without_work_earns_what_standard_brkga_earns() -> None:
    graph = jax.tree.map(jnp.asarray, one().graph)
    assert float(reward(jnp.float32(0), jnp.float32(0), graph, DeviceProblem.of(MAKESPAN))) == -1
    assert float(reward(jnp.float32(1), jnp.float32(0), graph, DeviceProblem.of(MAKESPAN))) == -2
