"""The sharding agent: energies against exact costs, advantages against exact gradients, padding, training, guides."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from shardings import random_problem

from graphrl.agents.sharding import instances
from graphrl.agents.sharding.agent import advantages
from graphrl.agents.sharding.instances import Prepared, ReducedInstance, ReducedSizes, common_sizes, padded, prepare
from graphrl.agents.sharding.network import Policy, ShardingConfig, ShardingNetwork, networks, uncertain
from graphrl.cli import main
from graphrl.errors import ProblemError
from graphrl.networks.base import NEVER
from graphrl.sharding.datasets import load_problem
from graphrl.sharding.guide import Guide, settle
from graphrl.sharding.moves import WATCHED
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem
from graphrl.sharding.reduce import reduce_problem, restrict_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import search

SMALL = ShardingConfig(network=ShardingNetwork(width=8, messages=2, rounds=1, segment=16))
SIZES = ReducedSizes(ops=16, options=8, strategies=64, slots=256, pairs=512, times=8)  # one program for all problems
ENERGIES = jax.jit(instances.energies)


def reduced_problem(seed: int) -> tuple[ShardingProblem, Reduced]:
    """A random problem with some freedom left after its reduction."""
    for number in itertools.count(seed):
        problem = random_problem(number, nodes=8, prohibitive=0.05)
        try:
            reduced = reduce_problem(problem)
        except ProblemError:
            continue
        if len(reduced.sizes) > 2:
            return problem, reduced
    raise AssertionError


@pytest.fixture(scope="module")
def policy() -> Policy:
    """An untrained policy."""
    quickly = {"xla_backend_optimization_level": 0}
    initial = jax.jit(Policy.initial, static_argnums=0, compiler_options=quickly)
    return Policy(SMALL, jax.device_get(initial(SMALL, jax.random.key(0))))


@pytest.fixture(scope="module")
def model() -> tuple[ShardingProblem, Reduced, Prepared]:
    """A random model with choices."""
    prepared = instances.problem_set("sharding-layers:60").graph(1)
    problem = load_problem(prepared.name)
    return problem, reduce_problem(problem), prepared


def arrays(prepared: Prepared, to: ReducedSizes = SIZES) -> ReducedInstance:
    instance: ReducedInstance = jax.tree.map(jnp.asarray, padded(prepared, to))
    return instance


@hypothesis.given(st.integers(0, 10_000))
@hypothesis.settings(max_examples=10, deadline=None)
def test_energies_are_exact_costs_and_those_of_single_changes(seed: int) -> None:
    problem, reduced = reduced_problem(seed)
    prepared = prepare(problem, reduced)
    instance, random, groups = arrays(prepared), np.random.default_rng(seed), len(reduced.sizes)
    unit = max(1.0, float(problem.total_cost(reduced.expand(prepared.arrays["best"]))))
    label = np.zeros(SIZES.ops, np.int32)
    for _ in range(4):
        label[:groups] = random.integers(reduced.sizes)
        energy, single = ENERGIES(instance, label)
        plan = reduced.expand(label[:groups].astype(np.int64))
        if problem.peak(plan) <= problem.limit and problem.costs(plan)[1].max(initial=0) < unit:
            assert float(energy) == pytest.approx(problem.total_cost(plan) / unit, rel=1e-5)
        v, changed = random.integers(groups), label.copy()
        changed[v] = random.integers(reduced.sizes[v])
        change = float(ENERGIES(instance, changed)[0] - energy)
        first = int(instance.first[v])
        assert change == pytest.approx(float(single[first + changed[v]] - single[first + label[v]]), abs=1e-4)


def test_bytes_above_the_room_cost_as_much_as_their_weight() -> None:
    prepared = next(
        one
        for seed in itertools.count()
        if (one := prepare(*reduced_problem(seed))).sizes.times and one.arrays["usage"].any()
    )
    instance = arrays(prepared)
    tight = dataclasses.replace(instance, room=instance.room - 10)  # all watched times are above it
    tighter = dataclasses.replace(instance, room=instance.room - 11)
    energies = [float(ENERGIES(one, instance.best)[0]) for one in (tight, tighter)]
    assert energies[1] - energies[0] == pytest.approx(float(instance.weight.sum()), rel=1e-4)
    assert float(instance.weight.sum()) > 0


def test_advantages_give_the_gradient_of_the_expected_energy() -> None:
    """The mean over all labels of a small problem is the gradient by the logits, and so is not biased."""
    problem, reduced = reduced_problem(5)
    instance, sizes = arrays(prepare(problem, reduced)), reduced.sizes.tolist()
    labels = np.zeros((int(np.prod(sizes)), SIZES.ops), np.int32)
    labels[:, : len(sizes)] = list(itertools.product(*map(range, sizes)))

    def log_probs(logits: jax.Array) -> jax.Array:  # [labels, G]
        each = jax.nn.log_softmax(logits)
        return jax.vmap(lambda label: jnp.take_along_axis(each, label[:, None], 1)[:, 0])(labels)

    @jax.jit
    def both(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        energy = jax.vmap(lambda label: instances.energies(instance, label)[0])(labels)
        advantage = jax.vmap(lambda label: advantages(instance, logits, label))(labels)
        chance = jnp.exp(log_probs(logits).sum(1))
        exact = jax.grad(lambda logits: (jnp.exp(log_probs(logits).sum(1)) * energy).sum())(logits)
        return exact, jax.grad(lambda logits: -(chance[:, None] * log_probs(logits) * advantage).sum())(logits)

    masked = jnp.where(instance.action_mask, 0.0, NEVER)
    exact, estimate = both(masked + jax.random.normal(jax.random.key(0), masked.shape))
    assert float(jnp.abs(exact).max()) > 1e-3
    np.testing.assert_allclose(estimate, exact, atol=2e-5)


def test_padding_changes_no_logit(model: tuple[ShardingProblem, Reduced, Prepared], policy: Policy) -> None:
    prepared = model[2]
    larger = ReducedSizes(**{name: 2 * size for name, size in dataclasses.asdict(common_sizes([prepared])).items()})
    other = np.asarray(jax.jit(networks(SMALL).policy.apply)(policy.params, arrays(prepared, larger)))
    groups, options = prepared.sizes.ops, prepared.sizes.options
    np.testing.assert_allclose(policy.logits(prepared), other[:groups, :options], atol=1e-4)
    assert (other[:groups, options:] == NEVER).all()


def test_the_untrained_policy_follows_messages(
    model: tuple[ShardingProblem, Reduced, Prepared], policy: Policy
) -> None:
    """Labels of the best plan by messages that have the least belief, too, are the likeliest."""
    arrays = model[2].arrays
    features = arrays["strategy_features"][arrays["first"] + arrays["best"]]
    agrees = features[:, instances.BELIEF] == 0
    assert agrees.sum() > len(agrees) / 2
    assert (policy.logits(model[2]).argmax(1) == arrays["best"])[agrees].all()


def test_uncertain_groups_are_moved_more_often() -> None:
    logits = np.array([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0], [9.0, -1e9]])
    roots = uncertain(logits, np.zeros(4, np.int64), np.random.default_rng(0))
    counts = np.bincount(roots, minlength=4) / len(roots)
    assert counts[2] > counts[1] > 2 * counts[0]
    assert counts[0] == pytest.approx(counts[3], abs=0.03)
    assert counts.min() > 0.08


def test_a_guide_gives_labels_that_the_search_starts_from(
    model: tuple[ShardingProblem, Reduced, Prepared], policy: Policy
) -> None:
    problem = model[0]
    guides: list[Any] = []

    def guide(problem: ShardingProblem, reduced: Reduced) -> Any:
        guides.append(policy.guide(problem, reduced, samples=4))
        assert guides[0].labels.shape == (4, len(reduced.sizes))
        assert (guides[0].labels < reduced.sizes).all()
        return guides[0]

    plan, reduced = search(problem, 0.2, guide=guide, workers=1)
    plan.check(problem)
    assert len(guides) == 1
    repeated = policy.guide(problem, reduced, samples=4)
    assert (guides[0].labels == repeated.labels).all()
    assert (guides[0].nodes == repeated.nodes).all()


def test_a_guided_search_of_as_many_evaluations_gives_the_same_plan(
    model: tuple[ShardingProblem, Reduced, Prepared], policy: Policy
) -> None:
    problem = model[0]
    plans = [search(problem, 60, guide=policy.guide, evaluations=100)[0] for _ in range(2)]
    assert plans[0].strategies == plans[1].strategies


def test_nodes_of_a_guide_are_groups_of_what_is_left() -> None:
    reduced = reduced_problem(1)[1]
    guide = Guide(np.zeros((1, len(reduced.sizes)), np.int64), np.arange(len(reduced.root)))
    roots = guide.roots(reduced)
    assert set(roots.tolist()) == set(range(len(reduced.sizes)))
    keep = np.ones(len(reduced.cost), bool)
    keep[1 : reduced.sizes[0]] = False  # decides the first group
    assert set(guide.roots(left := restrict_problem(reduced, keep)).tolist()) == set(range(len(left.sizes)))
    assert len(guide.roots(left)) < len(roots)


@hypothesis.given(st.integers(0, 10_000))
@hypothesis.settings(max_examples=10, deadline=None)
def test_settled_labels_cost_what_they_say(seed: int) -> None:
    problem, reduced = reduced_problem(seed)
    one, other = settle(reduced, 20), settle(reduced, 20)
    assert (one.best == other.best).all()
    assert (one.messages.message == other.messages.message).all()
    assert len(one.multipliers) == one.state.numbers[WATCHED]
    plan = reduced.expand(one.best)
    if problem.peak(plan) <= problem.limit and problem.costs(plan)[1].max(initial=0) < PROHIBITIVE:
        assert one.cost + reduced.constant == problem.total_cost(plan)


def test_what_no_search_can_keep_has_no_features_either() -> None:
    random, edges = np.random.default_rng(4), np.array(list(itertools.combinations(range(6), 2)))
    dear = dataclasses.replace(
        random_problem(0), edges=edges, offset=np.arange(0, 19, 3), edge_offset=np.arange(0, 136, 9),
        cost=random.integers(PROHIBITIVE // 20, PROHIBITIVE // 10, 18),
        edge_cost=random.integers(0, PROHIBITIVE // 50, 135), usage=np.ones(18, np.int64),
        interval=np.tile([0, 5], (6, 1)),
    )  # fmt: skip
    reduced = reduce_problem(dear)
    for function in (lambda: prepare(dear, reduced), lambda: search(dear, 1.0)):
        with pytest.raises(ProblemError, match="use a larger unit for costs"):
            function()


def test_sets_without_any_problem_of_use_say_why() -> None:
    with pytest.raises(ProblemError, match="none of 100 problems from seed 0 on is of use; the last: "):
        instances.problem_set("sharding-layers:1").graph(0)


def test_sets_replace_problems_without_choices() -> None:
    problems = instances.problem_set("sharding-layers:8x3@7")
    prepared = [problems.graph(seed) for seed in problems.seeds]
    assert all(one.sizes.ops > 0 for one in prepared)
    assert any(int(one.name.partition("@")[2]) > instances.SKIP for one in prepared)
    with pytest.raises(ProblemError, match="is no set of problems"):
        instances.problem_set("problem.json")


def test_it_trains_resumes_and_guides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, settings = str(tmp_path / "run"), [
        "agent.network.width=8", "agent.network.messages=2", "agent.network.rounds=1", "agent.samples=2",
        "agent.ppo.environments=4", "agent.ppo.epochs=1", "data.graphs=2", "data.train=sharding-layers:20x4@1000",
        "data.validation=sharding-layers:20x2@1", "data.test=sharding-layers:20x2@9", "training.steps=1",
    ]  # fmt: skip
    assert main(["train", "sharding", "--out", out, "--set", *settings]) == 0
    assert "improvement" in capsys.readouterr().out
    assert main(["train", "sharding", "--out", out, "--resume", "training.steps=2"]) == 0
    assert "trained: 2 steps" in capsys.readouterr().out
    assert main(["shard", "sharding-layers:20@2", "--seconds", "20", "--guide", out]) == 0
    assert "optimal" in capsys.readouterr().out
    assert main(["train", "sharding", "--out", f"{out}-2", "--set", *settings, "data.augment=true"]) == 2
    assert "data.augment is True: must be False" in capsys.readouterr().err
    assert main(["evaluate", out]) == 2
    assert "give the checkpoint to graphrl shard --guide" in capsys.readouterr().err
