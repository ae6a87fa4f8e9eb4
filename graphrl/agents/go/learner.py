"""GO's learner: imitation of a greedy teacher or PPO on `Compile-v0`, both starting from a heuristic's plan (the hint).

- `imitation_target`, `imitation_loss`: the teacher is a hill climber that starts from the hint. At each stop, a plan,
  it computes the gain of every change of one op, then applies the changes that gain, best first. An `ImitationTarget`
  has all stops on a graph, and thus exact costs of thousands of plans. PPO would have to estimate these from rewards
  that sum the effects of many changes.
- `batch`: training graphs as instances for PPO, or as targets for imitation, under each transfer model.
- `learner` (`init`, `update`, `evaluate`): PPO samples plans around the one that the policy sees. The next round starts
  from the best plan so far. Every round is an episode of one step, as when a trained policy plans (`agent.py`).
- `fine_tune`: further PPO on one graph, for methods with `finetune`.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import DECODERS, PlanDecoder, hint_instance, percent_saved
from graphrl.agents.go.network import networks, tiny_observation
from graphrl.costs.problem import SCHEDULED, Problem, Transfer
from graphrl.envs.base import Environment
from graphrl.envs.compile.features import PlanFeatures
from graphrl.envs.compile.generator import Choices, CompileInstance
from graphrl.envs.compile.observation import observe
from graphrl.envs.compile.reward import INVALID, possible_choices
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning import learner as learning
from graphrl.learning import ppo
from graphrl.learning.learner import Learner, LearnerState, Metrics
from graphrl.learning.ppo.settings import likeliest, sample
from graphrl.networks.base import Network

MAX_GAIN = 2.0  # maximum gain of a change, percent of the makespan
NATS_PER_PERCENT = 20.0  # target logit of a change relative to no change, per percent of gain
MAX_CHANGED = 0.1  # maximum number of changes between two stops, as a share of the ops


class ImitationTarget(NamedTuple):
    """One instance, and the gains that the teacher computed at s stops, which are plans."""

    instance: CompileInstance
    starts: Choices  # [s, n] each, the plan at each stop
    gains: Choices  # [s, n, o] float32 each: percent of the makespan; at least 0, and 0 for the current choice
    plan_features: PlanFeatures  # [s, n, ...], features of the plans' schedules


def imitation_target(
    graph: ComputationGraph, problem: Problem, instance: CompileInstance, stops: int, tasks: Sequence[str]
) -> ImitationTarget:
    """Runs the teacher on a graph from its instance's start, and collects its gains; it changes only these tasks."""
    n = len(graph.ops)
    decoder = DECODERS[problem.objective](graph, problem, instance)
    chosen = [np.asarray(choice, np.int64)[:n].copy() for choice in (instance.start.placement, instance.start.priority)]
    devices, levels = instance.runs_on.shape[1], 0 if instance.levels is None else len(instance.levels)
    to, starts, gains, runs = len(instance.order), [], [], []
    for _ in range(stops):
        each = [np.zeros((n, problem.devices)), np.zeros((n, levels))]
        if "placement" in tasks:
            each[0] = decoder.gains(chosen[0], chosen[1])
        if "priority" in tasks:
            each[1] = _gains_of_levels(decoder, chosen, levels)
        starts.append([choice.copy() for choice in chosen])
        gains.append(each)
        runs.append(decoder.plan_features(chosen[0], chosen[1]))
        _climb(decoder, chosen, each)
        chosen[0] = decoder.colocated(chosen[0])
    return ImitationTarget(
        instance,
        Choices(*(_padded(np.stack(each), (to,)).astype(np.int32) for each in zip(*starts, strict=True))),
        Choices(
            *(
                _padded(np.stack(each), (to, count)).astype(np.float32)
                for each, count in zip(zip(*gains, strict=True), (devices, levels), strict=True)
            )
        ),
        PlanFeatures(*(np.stack(each) for each in zip(*runs, strict=True))),  # type: ignore[arg-type]
    )


def _padded(rows: np.ndarray, to: tuple[int, ...]) -> np.ndarray:
    """Pads all axes but the first with zeros at the end."""
    return np.pad(rows, [(0, 0), *((0, size - size_now) for size, size_now in zip(to, rows.shape[1:], strict=True))])


def imitation_loss(policy: Network, params: object, tasks: tuple[str, ...], target: ImitationTarget) -> jax.Array:
    """Computes the mean squared error, over all changes, stops and tasks, between the policy's logits of changes and
    their gains: `[]` float32, percent squared.

    The target logit of a change, relative to no change, is `NATS_PER_PERCENT` for each percent that the change alone
    gains. Gains count as at most `MAX_GAIN`, and losses as 0, since a worse plan is not taken. All gains of a graph
    thus provide a signal, and the policy stays as uncertain as they are. A policy trained only on the expected gain of
    its changes would concentrate on a few of them; its plans would be nearly identical, and the best of them no better
    than chance.
    """

    def of_stop(start: Choices, gains: Choices, features: PlanFeatures) -> jax.Array:
        observation = observe(dataclasses.replace(target.instance, start=start), start, tasks, features)
        logits, error = policy.apply(params, observation), jnp.float32(0)
        for task in tasks:
            mask = observation.action_mask[task]
            previous = jax.nn.one_hot(observation.previous[task], mask.shape[-1], dtype=bool)
            relative = logits[task] - jnp.where(previous, logits[task], 0.0).sum(-1, keepdims=True)
            wrong = relative / NATS_PER_PERCENT - jnp.clip(getattr(gains, task), 0.0, MAX_GAIN)
            changes = mask & ~previous & (mask.sum(-1, keepdims=True) > 1)
            error += jnp.square(jnp.where(changes, wrong, 0.0)).sum() / jnp.maximum(changes.sum(dtype=jnp.float32), 1.0)
        return error / len(tasks)

    return jax.vmap(of_stop)(target.starts, target.gains, target.plan_features).mean()


def _gains_of_levels(decoder: PlanDecoder, chosen: list[np.ndarray], levels: int) -> np.ndarray:
    """Computes the percent by which each new level of one op decreases the makespan: `[n, levels]`; increases are 0."""
    placement, level = chosen
    now, makespans = decoder.rank(placement, level)[1], np.empty((len(level), levels))
    for op, other in np.ndindex(makespans.shape):
        previous, level[op] = level[op], other
        makespans[op, other] = decoder.rank(placement, level)[1]
        level[op] = previous
    return percent_saved(now, makespans)


def _climb(decoder: PlanDecoder, chosen: list[np.ndarray], gains: list[np.ndarray]) -> None:
    """Applies the changes that gain, best first, if they still do; at most `MAX_CHANGED` of the ops."""
    n, now, count = len(chosen[0]), decoder.rank(chosen[0], chosen[1]), 0
    gain = np.stack([each.max(1, initial=0) for each in gains])
    for which in np.argsort(-gain, axis=None, kind="stable"):
        task, op = divmod(int(which), n)
        if gain[task, op] <= 0 or count >= MAX_CHANGED * n:
            return
        previous = chosen[task][op]
        chosen[task][op] = gains[task][op].argmax()
        rank = decoder.rank(chosen[0], chosen[1])
        if rank < now:
            now, count = rank, count + 1
        else:
            chosen[task][op] = previous


Batch = dict[Transfer, Any]  # for each transfer model `CompileInstance`, or an `ImitationTarget`, with a leading axis g


def problem_of(
    settings: GoSettings, graph: ComputationGraph, transfer: Transfer, devices: int | None = None
) -> Problem:
    """Returns the training problem of a graph under a transfer model. The graph's name determines the number of
    devices, unless it is given, and the transfer speed. Under max_load the graph's machine, if it names one, determines
    the devices and the memory limit, and tensors may have their own transfer times.
    """
    which = zlib.crc32(graph.name.encode())
    devices = settings.devices[which % len(settings.devices)] if devices is None else devices
    ratios = settings.communication_ratios
    if not ratios:
        return dataclasses.replace(settings.problem, transfer=transfer, devices=devices)
    ratio = ratios[which // len(settings.devices) % len(ratios)]
    a = graph.arrays
    seconds = ratio * (a.runtime.mean() if a.num_ops else 0.0)
    size = float(a.tensor_bytes.mean()) if a.num_tensors else 0.0
    slow = {} if seconds <= 0 or size <= 0 else {"latency": 0.2 * seconds, "bandwidth": size / (0.8 * seconds)}
    objective = settings.problem.objective
    machine = {"devices": devices} if graph.machine is None or objective in SCHEDULED else {}
    return Problem.on(graph.machine, objective=objective, transfer=transfer, **machine, **slow)


def batch(settings: GoSettings, graphs: Sequence[ComputationGraph], to: Sizes) -> Batch:
    """Converts graphs to instances under each transfer model, or to targets for imitation."""
    machines = [graph.machine for graph in graphs if graph.machine is not None]
    max_devices = max((machine.accelerators + machine.cpus for machine in machines), default=1)
    get = partial(_CACHE.get, settings, to, max_devices)
    rows = {transfer: [get(graph, transfer) for graph in graphs] for transfer in settings.models}
    return {transfer: jax.tree.map(lambda *leaves: np.stack(leaves), *each) for transfer, each in rows.items()}


class _Cache:
    """Cache of batch rows, one per graph: computing a hint takes milliseconds, and an imitation target a second."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows, self._rows = max_rows, dict[Any, Any]()

    def get(self, settings: GoSettings, to: Sizes, devices: int, graph: ComputationGraph, transfer: Transfer) -> Any:
        """Returns the instance or target of a graph, padded for a batch with at least `devices` devices."""
        key = settings, to, devices, id(graph), transfer
        cached = self._rows.get(key)  # once: another thread may clear the cache
        if cached is None:
            if len(self._rows) >= self._max_rows:
                self._rows.clear()
            cached = graph, _row(settings, to, devices, graph, transfer)
            self._rows[key] = cached  # keeps the graph alive, so that its id stays unique
        return cached[1]


_CACHE = _Cache(4096)


def _row(
    settings: GoSettings, to: Sizes, devices: int, graph: ComputationGraph, transfer: Transfer
) -> CompileInstance | ImitationTarget:
    problem = problem_of(settings, graph, transfer)
    instance = hint_instance(graph, problem, to, settings, devices=devices)
    if settings.learning == "ppo":
        return instance
    return imitation_target(graph, problem, instance, settings.stops, settings.network.tasks)


class _RoundState(NamedTuple):
    """State of a sequence of rounds on one graph, which improve a plan."""

    instance: CompileInstance  # starts from the best plan so far
    reward: jax.Array  # [] float32, reward of that plan


def learner(settings: GoSettings) -> Learner:
    """Creates the learner of a configuration, from the functions below."""
    functions = partial(init, settings), partial(update, settings), partial(evaluate, settings)
    return Learner(*functions, score="sampled", unit="%")


def init(settings: GoSettings, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training, with the parameters "policy" and "value"; see `Learner`."""
    return ppo.init(settings.ppo, networks(settings.network), key, tiny_observation(settings), policy)


def update(settings: GoSettings, state: LearnerState, key: jax.Array, batch: Batch) -> tuple[LearnerState, Metrics]:
    """Runs a PPO update for each round and transfer model, or one imitation step; see `Learner`.

    Returns:
      The new state, and means of `ppo.learn`'s metrics, with "best": the percent by which the best plan of the last
      round was faster than the hint. For imitation "loss", see `imitation_loss`, and "grad_norm".
    """
    if settings.learning == "imitation":
        return _imitate(settings, state, batch)

    def all_rounds(state: LearnerState, model: tuple[jax.Array, CompileInstance]) -> tuple[LearnerState, Metrics]:
        (number, instances), env = model, _AnyTransfer(settings.env, tuple(batch), model[0])
        round_keys = jax.random.split(jax.random.fold_in(key, number), settings.rounds)
        keys = jax.vmap(learning.keys, (0, None))(round_keys, instances.order.shape[0])
        carry = state, jax.vmap(partial(_initial_state, env))(instances)
        (state, _), metrics = jax.lax.scan(partial(_round, settings, env), carry, keys)
        return state, metrics

    # a loop: with the networks once for each transfer model, XLA's compile time grows with the number of models
    state, metrics = jax.lax.scan(all_rounds, state, (jnp.arange(len(batch)), _stacked(batch)))
    totals = {"best": metrics["best"][:, -1].mean(), "env_steps": metrics["env_steps"].sum()}
    return state, {name: value.mean() for name, value in metrics.items()} | totals


def _imitate(settings: GoSettings, state: LearnerState, batch: Batch) -> tuple[LearnerState, Metrics]:
    """Takes one gradient step on imitation targets."""
    policy = networks(dataclasses.replace(settings.network, changes=0.0)).policy  # the number of changes is not learned

    def loss(params: dict[str, Any]) -> tuple[jax.Array, Metrics]:
        of_graph = partial(imitation_loss, policy, params["policy"], settings.network.tasks)
        losses = jax.vmap(jax.vmap(of_graph))(_stacked(batch))
        return losses.mean() / learning.device_count(), {"loss": learning.mean(losses)}

    gradient, metrics = jax.grad(loss, has_aux=True)(state.params)
    optimiser = learning.optimiser(settings.ppo.learning_rate, settings.ppo.max_grad_norm)
    state, metrics["grad_norm"] = learning.descend(optimiser, state, gradient)
    return state, metrics


def _round(
    settings: GoSettings, env: Any, carry: tuple[LearnerState, _RoundState], keys: jax.Array
) -> tuple[Any, Metrics]:
    (state, best_state), both = carry, networks(settings.network)
    split = jax.vmap(jax.random.split)(keys)
    samples = ppo.sample_actions(settings.ppo, env, both, state.params, split[:, 0], best_state.instance)
    # a worse plan has no cost, as the next round starts from the best; otherwise the policy learns to change nothing
    clipped = samples._replace(reward=jnp.maximum(samples.reward, best_state.reward[:, None]))
    state, metrics = ppo.learn(settings.ppo, both, state, split[:, 1], clipped)
    best_state = jax.vmap(_update_best)(best_state, samples.action, samples.reward)
    return (state, best_state), metrics | {"best": learning.mean(gain(best_state.reward))}


def evaluate(settings: GoSettings, params: Any, key: jax.Array, batch: Batch) -> Metrics:
    """Computes the percent by which the policy's plans are faster than the hint: means over graphs and transfer models.

    Returns:
      "sampled", the best of all rounds, including the hint; "random", the best of equally many random plans, each
      with the same number of changed ops as one of the policy's, but random ops and options; "greedy", the most likely
      plan of the first round; and "sampled_NAME", for transfer model NAME alone.
    """
    targets = {model: rows.instance if isinstance(rows, ImitationTarget) else rows for model, rows in batch.items()}

    def all_rewards(model: tuple[jax.Array, CompileInstance]) -> tuple[jax.Array, jax.Array]:
        (number, instances), env = model, _AnyTransfer(settings.env, tuple(batch), model[0])
        keys = learning.keys(jax.random.fold_in(key, number), instances.order.shape[0])
        play = jax.vmap(partial(_play, settings, env, params["policy"]), (0, 0, None))
        return jax.vmap(play, (None, None, 0))(keys, instances, jnp.array([False, True]))

    rewards = jax.lax.map(all_rewards, (jnp.arange(len(batch)), _stacked(targets)))
    best, likeliest_first = map(gain, rewards)  # [m, 2, g] each
    names = {"sampled": best[:, 0], "random": best[:, 1], "greedy": likeliest_first[:, 0]}
    by_model = {f"sampled_{model}": learning.mean(best[number, 0]) for number, model in enumerate(batch)}
    return {name: learning.mean(values) for name, values in names.items()} | by_model


class _AnyTransfer(NamedTuple):
    """`Compile-v0` under a transfer model that is known only when the program runs."""

    env: Environment[Any, Any, Any]
    models: tuple[Transfer, ...]
    number: jax.Array  # [] int32, index of the transfer model

    def reset(self, key: jax.Array, instance: CompileInstance) -> Any:
        """See `Environment`."""
        return self._under_model(self.env.reset, instance, key)

    def step(self, key: jax.Array, state: Any, action: Any, instance: CompileInstance) -> Any:
        """See `Environment`."""
        return self._under_model(self.env.step, instance, key, state, action)

    def _under_model(self, method: Any, instance: CompileInstance, *args: Any) -> Any:
        if len(self.models) == 1:  # max_load has no transfer model
            return method(*args, instance)

        def under(transfer: Transfer) -> Any:
            def run(instance: CompileInstance, *args: Any) -> Any:
                problem: Any = instance.problem
                problem = dataclasses.replace(problem, transfer=transfer)
                return method(*args, dataclasses.replace(instance, problem=problem))

            return run

        return jax.lax.switch(self.number, [under(model) for model in self.models], instance, *args)


def _stacked(batch: Batch) -> Any:
    """Stacks the rows of all transfer models, `[m, g, ...]` each. Their problem states the first one's model."""
    structure, leaves = jax.tree.structure(next(iter(batch.values()))), map(jax.tree.leaves, batch.values())
    return jax.tree.unflatten(structure, [jnp.stack(each) for each in zip(*leaves, strict=True)])


def fine_tune(
    settings: GoSettings, policy: Any, instance: CompileInstance, key: jax.Array, updates: int
) -> tuple[Any, Choices]:
    """Trains a policy on one graph with PPO. Returns the new parameters, and the best choices: sampled ones, or the
    instance's start if that is better.
    """
    params = jax.tree.map(jnp.asarray, policy)
    state, best_state = _fine_tune(settings, params, jax.tree.map(jnp.asarray, instance), key, updates)
    return jax.tree.map(np.asarray, state.params["policy"]), best_state.instance.start


@partial(jax.jit, static_argnums=(0, 4))
def _fine_tune(
    settings: GoSettings, policy: Any, instance: CompileInstance, key: jax.Array, updates: int
) -> tuple[LearnerState, _RoundState]:
    init_key, play_key = jax.random.split(key)
    best_state = _initial_state(settings.env, instance)
    carry = init(settings, init_key, policy), jax.tree.map(lambda leaf: leaf[None], best_state)
    keys = jax.vmap(learning.keys, (0, None))(jax.random.split(play_key, updates), 1)
    state, best_state = jax.lax.scan(partial(_round, settings, settings.env), carry, keys)[0]
    return state, jax.tree.map(lambda leaf: leaf[0], best_state)


def gain(reward: jax.Array) -> jax.Array:
    """Converts rewards to the percent by which their plans are faster than the baseline."""
    return 100 * (1 - jnp.square(reward))


def _play(
    settings: GoSettings, env: Any, policy: Any, key: jax.Array, instance: CompileInstance, is_random: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Plays all rounds on one graph: returns rewards `[]` of the best plan and of the first round's most likely one."""
    network = networks(settings.network).policy

    def play_round(best_state: _RoundState, key: jax.Array) -> tuple[_RoundState, jax.Array]:
        sample_key, chance_key = jax.random.split(key)
        state, first = env.reset(sample_key, best_state.instance)
        logits = network.apply(policy, first.observation)
        drawn = jax.vmap(sample, (0, None))(jax.random.split(sample_key, settings.samples), logits)
        action = jax.tree.map(lambda rest, best: rest.at[0].set(best), drawn, likeliest(logits))
        previous, mask = first.observation.previous, first.observation.action_mask
        random = jax.vmap(_random_changes, (0, 0, None, None))(
            jax.random.split(chance_key, settings.samples), drawn, previous, mask
        )
        action = jax.tree.map(lambda *two: jnp.where(is_random, *two), random, action)
        reward = jax.vmap(env.step, (None, None, 0, None))(sample_key, state, action, best_state.instance)[1].reward
        return _update_best(best_state, action, reward), reward[0]

    last, likely = jax.lax.scan(play_round, _initial_state(env, instance), jax.random.split(key, settings.rounds))
    return last.reward, likely[0]


def _initial_state(env: Any, instance: CompileInstance) -> _RoundState:
    """Creates the state before the first round: the hint, with reward -1, or `INVALID` if the hint is not valid."""
    no_key = jax.random.key(0)  # the environment draws no random numbers
    state, first = env.reset(no_key, instance)
    action = {task: jnp.asarray(getattr(instance.start, task)) for task in first.observation.previous}
    valid = env.step(no_key, state, action, instance)[1].info["valid"]
    return _RoundState(instance, jnp.where(valid, jnp.float32(-1), INVALID))


def _update_best(best_state: _RoundState, action: Any, reward: jax.Array) -> _RoundState:
    """Moves the state to the best of actions `[a, ...]`, if its reward is higher than the state's."""
    instance, best = best_state.instance, reward.argmax()
    is_better = reward[best] > best_state.reward
    choices = possible_choices(
        instance, instance.start._replace(**{task: options[best] for task, options in action.items()})
    )
    start = jax.tree.map(lambda *two: jnp.where(is_better, *two), choices, instance.start)
    return _RoundState(dataclasses.replace(instance, start=start), jnp.maximum(reward[best], best_state.reward))


def _random_changes(key: jax.Array, action: Any, previous: Any, mask: Any) -> Any:
    """Draws an action that changes, in each task, the same number of ops as `action`, but random ops and options."""

    def one(key: jax.Array, action: jax.Array, previous: jax.Array, mask: jax.Array) -> jax.Array:
        order_key, option_key = jax.random.split(key)
        movable = mask.sum(-1) > 1
        count = ((action != previous) & movable).sum()
        drawn = jnp.where(movable, jax.random.uniform(order_key, previous.shape), jnp.inf)
        other = mask & ~jax.nn.one_hot(previous, mask.shape[-1], dtype=bool)
        option = jax.random.categorical(option_key, jnp.where(other, 0.0, -jnp.inf)).astype(jnp.int32)
        return jnp.where((drawn.argsort().argsort() < count), option, previous)

    keys = dict(zip(sorted(action), jax.random.split(key, len(action)), strict=True))
    return {task: one(keys[task], action[task], previous[task], mask[task]) for task in action}
