"""Evolution and policy gradient together: counts, population and shared experience of a generation; learning;
reproducibility.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_maps as toy
from jax.sharding import Mesh
from toy_maps import NETWORKS

from graphrl.learning import collaborative
from graphrl.learning.collaborative import Settings, State
from graphrl.learning.evolution import EvolutionSettings
from graphrl.learning.learner import Learner, on_mesh
from graphrl.learning.sac import Domain, SacSettings
from graphrl.mesh import make_mesh
from graphrl.training.checkpoints import Checkpoints, Info, read

DOMAIN = Domain(toy.OPTIONS, toy.start, toy.observe, toy.evaluate)
ONE = toy.stacked(toy.instance(0, 10, 12))
TWO = toy.stacked(toy.instance(0, 10, 12), toy.instance(1, 12, 12))
SMALL = Settings(networks=4, chromosomes=2, replay=64, batch=4, sac=SacSettings(actor_rate=1e-2, critic_rate=1e-2))
EGRL = Settings(
    replay=1024,
    evolution=EvolutionSettings(strength=0.1),
    sac=SacSettings(actor_rate=1e-2, critic_rate=1e-2, entropy=0.2),
)


_init = jax.jit(collaborative.init, static_argnums=(0, 1, 2))
_generation = jax.jit(collaborative.generation, static_argnums=(0, 1, 2), donate_argnums=3)


def functions(settings: Settings) -> tuple[Any, Any]:
    """`init` and `generation` of the toy, jitted."""
    return tuple(functools.partial(function, settings, DOMAIN, NETWORKS) for function in (_init, _generation))  # type: ignore[return-value]


def run(
    settings: Settings, generations: int, instances: Any = ONE, seed: int = 0
) -> tuple[State, list[dict[str, float]]]:
    """The state after some generations, and each generation's metrics."""
    init, generation = functions(settings)
    key = jax.random.key(seed)
    state, history = init(instances, key), []
    for number in range(generations):
        state, metrics, _ = generation(state, jax.random.fold_in(key, number), instances)
        history.append({name: float(value) for name, value in metrics.items()})
    return state, history


def test_a_generation_counts_and_remembers_every_roll_out() -> None:
    state, (metrics, _) = run(EGRL, 2)
    assert metrics["env_steps"] == 22
    assert int(state.evaluations) == 44
    replay = state.learners.replay  # type: ignore[union-attr]
    assert int(replay.current_index) == 44
    stored = jax.tree.map(lambda leaf: np.asarray(leaf)[0, :44], replay.experience)
    reward = jax.vmap(toy.evaluate, (None, 0))(jax.tree.map(lambda leaf: leaf[0], ONE), stored.action.astype(np.int32))
    np.testing.assert_allclose(stored.reward, reward, rtol=1e-6)
    assert (stored.before == 0).all()
    assert (stored.continues == 0).all()
    assert stored.reward.max() == float(state.best.reward[0])


def test_it_learns_and_never_loses_its_best() -> None:
    state, history = run(EGRL, 30)
    best = [metrics["best"] for metrics in history]
    assert best == sorted(best)
    assert best[0] < 0.6
    assert best[-1] > 0.85, "as many random maps have some 0.66 at best, evolution alone some 0.82"
    assert float(toy.evaluate(jax.tree.map(lambda leaf: leaf[0], ONE), state.best.action[0])) == best[-1]
    greedy = NETWORKS.actor.apply(
        state.params["policy"], toy.observe(*jax.tree.map(lambda leaf: leaf[0], (ONE, state.best.action * 0)))
    )
    fitness = toy.evaluate(jax.tree.map(lambda leaf: leaf[0], ONE), greedy.argmax(-1).astype(jnp.int32))
    assert float(fitness) == history[-1]["networks"], "the policy is the fittest of the last generation"


VARIANTS = {
    "evolution alone": dataclasses.replace(SMALL, greedy=0, noisy=0),
    "learners alone": dataclasses.replace(SMALL, networks=0, chromosomes=0, noisy=3, gradient_steps=0.25),
    "chromosomes alone": dataclasses.replace(SMALL, networks=0, greedy=0, noisy=0),
    "endless, no chromosomes, no migration": dataclasses.replace(
        SMALL, chromosomes=0, migrate_every=0, endless=True, replay=16, discounts=(0.9, 0.99, 0.999)
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_run_count_and_repeat(name: str) -> None:
    settings = VARIANTS[name]
    (state, history), (again, _) = run(settings, 3, TWO), run(settings, 3, TWO)
    chex.assert_trees_all_equal(state, again)
    assert sum(metrics["env_steps"] for metrics in history) == 3 * settings.rollouts * 2
    assert all(np.isfinite(value) for metrics in history for value in metrics.values())
    assert (state.params["policy"] is None) == (name == "chromosomes alone")
    if name == "learners alone":  # at a quarter of a gradient step a generation, at least one step is done
        first, second = (run(settings, generations, TWO)[0].params["policy"] for generations in (0, 1))
        assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), first, second)))
    if state.learners is not None:
        replay = state.learners.replay
        stored = replay.experience.continues.shape[1] if bool(replay.is_full) else int(replay.current_index)
        share = np.asarray(replay.experience.continues)[0, :stored].mean()
        assert share == pytest.approx(float(settings.endless), abs=1e-6)


def test_a_generation_compiles_once() -> None:
    run(SMALL, 1)
    programs = _generation._cache_size()  # type: ignore[attr-defined]
    run(SMALL, 2, seed=1)
    assert _generation._cache_size() == programs  # type: ignore[attr-defined]


def learners_in_the_population(state: State) -> int:
    """Number of networks that equal the first learner's."""
    learner = jax.tree.map(lambda leaf: leaf[0], state.learners.states.params["actor"])  # type: ignore[union-attr]
    same = jax.tree.map(
        lambda many, one: (many == one[None]).all(range(1, many.ndim)), state.population.networks, learner
    )
    return int(np.stack(jax.tree.leaves(same)).all(0).sum())


def test_learners_migrate_into_the_population() -> None:
    assert learners_in_the_population(run(SMALL, 1)[0]) == 1
    assert learners_in_the_population(run(VARIANTS["endless, no chromosomes, no migration"], 1, TWO)[0]) == 0


def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    state, root, key = run(SMALL, 2)[0], jax.random.key(0), jax.random.key(5)
    info = Info("toy", 2, {}, jax.random.key_data(root).tolist(), str(jax.random.key_impl(root)), 0.0, {}, [], None)
    path = Checkpoints(tmp_path, 1).save(info, jax.tree.map(np.asarray, state))
    restored, generation = read(path, state).state, functions(SMALL)[1]
    (on, *_), (gone_on, *_) = generation(state, key, ONE), generation(jax.tree.map(jnp.asarray, restored), key, ONE)
    chex.assert_trees_all_equal(on, gone_on)


def search(mesh: Mesh, instances: Any) -> Learner:
    """The toy's learner, whose devices share the state."""

    def update(state: State, key: jax.Array, batch: Any) -> tuple[State, dict[str, jax.Array]]:
        return collaborative.generation(SMALL, DOMAIN, NETWORKS, state, key, batch, mesh)[:2]

    def evaluate(params: Any, key: jax.Array, batch: Any) -> dict[str, jax.Array]:
        return {}

    init = functools.partial(collaborative.init, SMALL, DOMAIN, NETWORKS, instances)
    return Learner(init, update, evaluate, "best", shardings=collaborative.shardings(SMALL, mesh))


def test_one_device_is_two_devices() -> None:
    states = []
    for devices in (1, 2):
        mesh = make_mesh(2, jax.devices()[:devices])
        learner = on_mesh(search(mesh, TWO), mesh)
        state = learner.init(jax.random.key(0))
        for number in range(2):
            state, _ = learner.update(state, jax.random.key(number), TWO)
        states.append(state)
    one, two = states
    chex.assert_trees_all_close(jax.tree.map(np.asarray, one), jax.tree.map(np.asarray, two), atol=1e-5, rtol=1e-5)
    for leaf in jax.tree.leaves((two.population, two.learners.replay.experience)):
        assert leaf.sharding.shard_shape(leaf.shape) != leaf.shape


def test_a_given_policy_is_where_it_begins() -> None:
    init, _ = functions(SMALL)
    policy = jax.tree.map(lambda leaf: leaf + 1, init(ONE, jax.random.key(3)).params["policy"])
    state = init(ONE, jax.random.key(0), policy)
    first = jax.tree.map(lambda leaf: leaf[0], state.population.networks)
    actor = jax.tree.map(lambda leaf: leaf[0], state.learners.states.params["actor"])
    chex.assert_trees_all_equal(first, policy, actor, state.params["policy"])


def test_better_learners_play_more_and_none_is_forgotten() -> None:
    returns = collaborative.init_returns(3)

    def play(returns: collaborative.Returns, key: jax.Array) -> tuple[collaborative.Returns, None]:
        drawn = collaborative.draw_learners(key, returns, 2)
        return collaborative.record_returns(returns, drawn, jnp.asarray([0.1, 0.2, 0.9])[drawn]), None

    returns, _ = jax.jit(lambda r: jax.lax.scan(play, r, jax.random.split(jax.random.key(0), 100)))(returns)
    plays = np.asarray(returns.plays)
    assert plays.sum() == 200
    assert plays.argmax() == 2
    assert plays.min() >= 10
    np.testing.assert_allclose(returns.value, [0.1, 0.2, 0.9], atol=1e-5)
