"""HDP: learns on the given graph to group its ops and to choose a device for each group. A baseline for GO and GDP.

Mirhoseini et al., "A Hierarchical Model for Device Placement", 2018, as implemented in TensorFlow's grappler.

- `HdpConfig` has the settings. `Instance` is one graph on the device, with the grouper's features, computed on the
  host.
- Two networks: `Grouper` assigns each op to a group; `Placer` is a recurrent network that chooses the devices of the
  groups one by one. A `Draw` defines how options are chosen.
- REINFORCE on the one graph: `update` increases the probability of placements whose reward is above the moving average
  of rewards.
- `solve` is the method "hdp": it learns on the graph within the budget, and returns the best placement so far.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.costs.device.decisions import Decisions, DeviceProblem, to_genes
from graphrl.costs.device.evaluate import fitness
from graphrl.costs.problem import Problem
from graphrl.envs.compile.sends import transfer_keys
from graphrl.errors import ProblemError
from graphrl.graphs.features import node_features, type_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.learning import reinforce
from graphrl.learning.learner import MAX_COUNT, check_ranges, gradient_step
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.brkga_solver import search_population
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.simple import breadth_first
from graphrl.solvers.solver import solver

Params = dict[str, Any]
FAILURE = -10.0  # reward of placements over the memory limit: grappler's failing signal is 100 s


@dataclasses.dataclass(frozen=True)
class HdpConfig:
    """Settings of HDP. The defaults are those of TensorFlow's hierarchical_controller.py, unless stated otherwise.

    Attributes:
      groups: number of groups of ops; 0 is 20 per device, at most 256.
      grouper: width of the grouper's hidden layer, which has no non-linearity.
      hidden: width of the placer, even: a bidirectional LSTM (half of it per direction) and one that attends to it.
      tanh_constant: bound of the absolute values of device logits.
      noise: deviation of the noise on all logits, relative to their root mean square, during the first `noisy` updates.
      noisy: number of updates with noise.
      sampled: number of updates that sample the groups' devices; later updates use the largest logit, where
        TensorFlow's repeats its last sample. The groups of ops are sampled throughout.
      updates: number of updates until learning restarts with new parameters.
      children: number of placements per update.
      rate: Adam's learning rate; after `decay_from` updates it is multiplied by `decay` every `decay_every` updates.
      gradient_norm: gradients are clipped to this global norm.
      memory: decay of the baseline, a moving average of rewards that starts from that of a failure.

    Raises:
      ProblemError: a value is out of range.
    """

    groups: int = 0
    grouper: int = 64
    hidden: int = 512
    tanh_constant: float = 1.0
    noise: float = 0.5
    noisy: int = 750
    sampled: int = 500
    updates: int = 1000
    children: int = 1
    rate: float = 0.1
    decay: float = 0.95
    decay_every: int = 50
    decay_from: int = 400
    gradient_norm: float = 1.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        integers = {"groups": (0, 4096), "grouper": (1, 4096), "hidden": (2, 4096), "children": (1, 1024)}
        integers |= {"noisy": (0, MAX_COUNT), "sampled": (0, MAX_COUNT), "updates": (1, MAX_COUNT)}
        integers |= {"decay_every": (1, MAX_COUNT), "decay_from": (0, MAX_COUNT)}
        above_zero = "tanh_constant", "rate", "decay", "gradient_norm"
        check_ranges(self, integers=integers, above_zero=above_zero, not_below_zero=("noise",), options={})
        if self.hidden % 2:
            raise ProblemError(f"hidden is {self.hidden}: must be even, half for each direction")
        if not 0 <= self.memory < 1:
            raise ProblemError(f"memory is {self.memory!r}: must be from 0 to below 1")

    def groups_for(self, devices: int) -> int:
        """Returns the number of groups for the given number of devices."""
        return self.groups or min(256, 20 * devices)


class Instance(NamedTuple):
    """One graph of n ops (padding included), e uses and F features."""

    graph: PaddedGraph  # a batch of one
    problem: DeviceProblem
    features: jax.Array | np.ndarray  # [n, F] float32; 0 for padding
    leader: jax.Array | np.ndarray  # [n] int32, the first op of each op's colocation group
    decides: jax.Array | np.ndarray  # [n] bool, True for real ops that are their own leaders
    keys: jax.Array | np.ndarray  # [n] float32, the ready op with the largest key runs first: first in, first out


def instance(graph: ComputationGraph, problem: Problem) -> Instance:
    """Converts a graph to an instance.

    The grouper's inputs are the op features of graphrl's other networks, and the op's position in the order.
    (TensorFlow's are its type, the shapes of its outputs, and the numbers of ten of its neighbours.)
    """
    padded, n = pad_batch([graph]), len(graph.ops)
    place = np.empty(n)
    place[breadth_first(Flow(graph))] = (np.arange(n) + 0.5) / n
    leader = np.arange(padded.sizes.ops)
    leader[:n] = graph.leaders
    features = np.column_stack([node_features(graph), type_features(graph), place])
    rest = padded.sizes.ops - n
    return Instance(
        graph=padded,
        problem=DeviceProblem.of(problem),
        features=np.pad(features, ((0, rest), (0, 0))).astype(np.float32),
        leader=leader.astype(np.int32),
        decides=(leader == np.arange(len(leader))) & (np.arange(len(leader)) < n),
        keys=np.pad(1 - place, (0, rest)).astype(np.float32),
    )


class Draw(NamedTuple):
    """Settings of an update for choosing options: the noise, and sampled or most likely devices."""

    noise: jax.Array  # [] float32, see `HdpConfig`; 0 disables noise
    is_sampled: jax.Array  # [] bool, True samples devices; groups are always sampled


def choose(key: jax.Array, logits: jax.Array, draw: Draw) -> tuple[jax.Array, jax.Array]:
    """Chooses an option for every choice: `[...]` int32, and the noisy logits `[..., options]` that determine it."""
    of_noise, of_sample = jax.random.split(key)
    size = jax.lax.stop_gradient(jnp.sqrt(jnp.square(logits).mean()))
    logits = logits + draw.noise * size * jax.random.normal(of_noise, logits.shape)
    likeliest = jnp.argmax(logits, -1).astype(jnp.int32)
    return jnp.where(draw.is_sampled, reinforce.sample(of_sample, logits), likeliest), logits


class Grouper(nn.Module):
    """Computes for every op the logits of its group: two linear layers without a non-linearity.

    Attributes:
      hidden: width of the first layer.
      groups: number of groups.
    """

    hidden: int
    groups: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Maps op features `[n, F]` float32 to logits `[n, groups]`."""
        hidden = nn.Dense(self.hidden, use_bias=False, name="in")(features)
        return nn.Dense(self.groups, use_bias=False, name="out")(hidden)


class Placer(nn.Module):
    """Chooses a device for every group, one by one: a bidirectional LSTM encodes the groups; a second LSTM attends to
    the encodings, given the previous group's device.

    Attributes:
      config: settings of HDP.
      devices: number of devices, d.
    """

    config: HdpConfig
    devices: int

    @nn.compact
    def __call__(self, groups: jax.Array, key: jax.Array, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Maps group embeddings `[k, G]` float32 to the groups' devices `[k]` int32 and device logits `[k, d]`."""
        hidden = self.config.hidden
        forward, backward = (nn.RNN(_lstm(hidden // 2), name=name) for name in ("forward", "backward"))
        memory = nn.Bidirectional(forward, backward)(groups[None])[0]
        keys = nn.Dense(hidden, use_bias=False, name="keys")(memory)
        steps = nn.scan(
            _Step,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        )
        begin = (jnp.zeros(hidden), jnp.zeros(hidden)), jnp.int32(self.devices)
        each = jax.random.split(key, groups.shape[0])
        return steps(self.config, self.devices, name="step")(begin, each, memory, keys, draw)[1]


def _lstm(hidden: int, name: str | None = None) -> nn.OptimizedLSTMCell:
    # Linen's default initial weights are orthogonal; their decomposition takes longer to compile than everything else
    return nn.OptimizedLSTMCell(hidden, recurrent_kernel_init=nn.initializers.lecun_normal(), name=name)


class _Step(nn.Module):
    """Chooses the device of one group: a step of `Placer`."""

    config: HdpConfig
    devices: int

    @nn.compact
    def __call__(
        self,
        carry: tuple[tuple[jax.Array, jax.Array], jax.Array],
        key: jax.Array,
        memory: jax.Array,
        keys: jax.Array,
        draw: Draw,
    ) -> tuple[tuple[tuple[jax.Array, jax.Array], jax.Array], tuple[jax.Array, jax.Array]]:
        hidden, (state, before) = self.config.hidden, carry
        last = nn.Embed(self.devices + 1, hidden, name="device")(before)  # the last one is for the first group
        state, output = _lstm(hidden, name="cell")(state, last)
        query = nn.Dense(hidden, use_bias=False, name="query")(output)
        scores = nn.Dense(1, use_bias=False, name="score")(jnp.tanh(keys + query[None]))[:, 0]
        context = jax.nn.softmax(scores) @ memory
        logits = nn.Dense(self.devices, use_bias=False, name="logits")(jnp.concatenate([output, context]))
        device, logits = choose(key, self.config.tanh_constant * jnp.tanh(logits), draw)
        return (state, device), (device, logits)


def init(config: HdpConfig, key: jax.Array, task: Instance) -> Params:
    """Initialises the parameters of both networks."""
    of_grouper, of_placer, choice = jax.random.split(key, 3)
    grouper, placer = _networks(config, task)
    draw = Draw(jnp.float32(0), jnp.asarray(True))
    groups = jnp.zeros((grouper.groups, _width(task, grouper.groups)))
    return {
        "grouper": grouper.init(of_grouper, jnp.asarray(task.features))["params"],
        "placer": placer.init(of_placer, groups, choice, draw)["params"],
    }


def play(config: HdpConfig, params: Params, key: jax.Array, task: Instance, draw: Draw) -> tuple[jax.Array, jax.Array]:
    """Samples a placement: returns its log-probability, `[]` float32, and the placement, `[n]` int32."""
    of_grouper, of_placer = jax.random.split(key)
    grouper, placer = _networks(config, task)
    logits: Any = grouper.apply({"params": params["grouper"]}, jnp.asarray(task.features))
    group, logits = choose(of_grouper, logits, draw._replace(is_sampled=jnp.asarray(True)))
    total = reinforce.log_prob(logits, group, task.decides)
    group = group[task.leader]
    embedded, used = _embedded(task, group, grouper.groups)
    placed: Any = placer.apply({"params": params["placer"]}, embedded, of_placer, draw)
    device, logits = placed
    return total + reinforce.log_prob(logits, device, used), device[group]


def _networks(config: HdpConfig, task: Instance) -> tuple[Grouper, Placer]:
    devices = task.problem.devices
    return Grouper(config.grouper, config.groups_for(devices)), Placer(config, devices)


def _width(task: Instance, groups: int) -> int:
    return task.features.shape[1] + 1 + groups


def _embedded(task: Instance, group: jax.Array, groups: int) -> tuple[jax.Array, jax.Array]:
    """Computes the placer's inputs for k groups, `[k, G]` float32: their ops' mean features, their share of the ops and
    the groups that read them; and a mask of groups with ops, `[k]` bool.
    """
    graph = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], task.graph)
    n = graph.sizes.ops
    real = jnp.arange(n, dtype=jnp.int32) < graph.num_ops
    counts = jnp.zeros(groups).at[group].add(real.astype(jnp.float32))
    sums = jnp.zeros((groups, task.features.shape[1])).at[group].add(jnp.asarray(task.features))
    share = counts[:, None] / jnp.maximum(graph.num_ops, 1).astype(jnp.float32)
    writer = group[graph.producer[jnp.minimum(graph.use_tensor, graph.sizes.tensors - 1)]]
    pair = jnp.where(graph.use_op < n, writer * groups + group[jnp.minimum(graph.use_op, n - 1)], groups**2)
    read = jnp.zeros(groups**2).at[pair].set(1.0, mode="drop").reshape(groups, groups)
    return jnp.concatenate([sums / jnp.maximum(counts, 1.0)[:, None], share, read], 1), counts > 0


class State(NamedTuple):
    """The complete state of learning, and the best placement so far."""

    params: Params
    moments: Any  # Adam's moments
    baseline: jax.Array  # [] float32, moving average of the rewards
    step: jax.Array  # [] int32, number of updates since the last restart
    key: jax.Array
    placement: jax.Array  # [n] int32, the best so far
    value: jax.Array  # [] float32, its fitness


@functools.partial(jax.jit, static_argnums=0)
def begin(config: HdpConfig, key: jax.Array, task: Instance) -> State:
    """Creates the state before learning, with new parameters."""
    key, own = jax.random.split(key)
    params = init(config, own, task)
    placement = jnp.zeros(task.leader.shape[0], jnp.int32)
    moments = optimiser(config).init(params)
    return State(params, moments, jnp.float32(FAILURE), jnp.int32(0), key, placement, jnp.float32(jnp.inf))


def optimiser(config: HdpConfig) -> optax.GradientTransformation:
    """Creates the optimiser: Adam with global-norm clipping and a learning rate that decays in steps."""
    rate = optax.exponential_decay(
        config.rate, config.decay_every, config.decay, transition_begin=config.decay_from, staircase=True
    )
    return optax.chain(optax.clip_by_global_norm(config.gradient_norm), optax.adam(rate))


def update(config: HdpConfig, state: State, task: Instance) -> State:
    """Samples `config.children` placements, and takes one REINFORCE step on their costs."""
    key, *keys = jax.random.split(state.key, config.children + 1)
    noise = jnp.where(state.step < config.noisy, config.noise, 0.0)
    draw = Draw(noise, state.step < config.sampled)

    def total(params: Params) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(lambda key: play(config, params, key, task, draw))(jnp.stack(keys))

    _, pull, placements = jax.vjp(total, state.params, has_aux=True)
    values = costs(task, placements)
    reward = rewards(task, values)
    (gradient,) = pull(-(reward - state.baseline) / config.children)
    params, moments = gradient_step(optimiser(config), state.params, state.moments, gradient)
    best = jnp.argmin(values)
    better = values[best] < state.value
    return State(
        params,
        moments,
        config.memory * state.baseline + (1 - config.memory) * reward.mean(),
        state.step + jnp.int32(1),
        key,
        jnp.where(better, placements[best], state.placement),
        jnp.minimum(values[best], state.value),
    )


def decisions(task: Instance, placements: jax.Array) -> Decisions:
    """Converts placements `[p, n]`, with the order of the instance, to inputs of the cost model."""
    graph = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], task.graph)
    keys = jnp.asarray(task.keys)
    sent = jax.vmap(lambda placement: transfer_keys(graph, placement, keys, task.problem.devices))(placements)
    every = jnp.broadcast_to(keys, placements.shape)
    return Decisions(placements.T[:, None], every.T[:, None], jnp.moveaxis(sent, 0, -1)[:, :, None])


def costs(task: Instance, placements: jax.Array) -> jax.Array:
    """Computes the fitness of placements `[p, n]`: `[p]` float32, lower is better (`costs.device.evaluate.fitness`)."""
    return fitness(jax.tree.map(jnp.asarray, task.graph), decisions(task, placements), task.problem)[0]


def rewards(task: Instance, values: jax.Array) -> jax.Array:
    """Converts each fitness `[p]` to a reward, -sqrt(seconds), or `FAILURE` for placements over the memory limit."""
    unit = jnp.asarray(task.graph.second_unit)[0]
    if task.problem.memory_limit is None:
        return -jnp.sqrt(values * unit)
    return jnp.where(values < 0, -jnp.sqrt(unit / jnp.maximum(-values, 1e-30)), FAILURE)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def restart(config: HdpConfig, state: State, task: Instance) -> State:
    """Restarts learning with new parameters, but keeps the best placement so far."""
    return begin(config, state.key, task)._replace(placement=state.placement, value=state.value)


@solver(
    "hdp",
    "hierarchical device placement (Mirhoseini et al. 2018), learned on the given graph",
    colocates=True,
    objectives=("makespan",),
)
def solve(
    task: Task,
    *,
    children: int = 1,
    groups: int = 0,
    hidden: int = 512,
    rate: float = 0.1,
    sampled: int = 500,
    noisy: int = 750,
    updates: int = 1000,
) -> Plan:
    """Learns placements of the task's graph in whole updates of `children` evaluations within the budget; at least one.

    Args:
      options: see `HdpConfig`.

    Raises:
      ProblemError: an option is out of range.
    """
    config = HdpConfig(
        children=children, groups=groups, hidden=hidden, rate=rate, sampled=sampled, noisy=noisy, updates=updates
    )
    learned = jax.tree.map(jnp.asarray, instance(task.graph, task.problem))
    return search_population(
        task,
        learned.graph,
        begin(config, jax.random.key(task.seed), learned),
        advance=lambda state, steps, _: _advanced(config, state, learned, steps),
        best=lambda state: _best(state, learned),
        evaluations=children,
    )


def _advanced(config: HdpConfig, state: State, task: Instance, steps: int) -> State:
    """Runs `steps` updates, with a restart after every `config.updates`."""
    while steps:
        if (done := int(state.step)) == config.updates:
            state, done = restart(config, state, task), 0
        some = min(steps, config.updates - done)
        state, steps = advance(config, state, task, some), steps - some
    return state


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def advance(config: HdpConfig, state: State, task: Instance, steps: int) -> State:
    """Runs `steps` updates in one program."""
    return jax.lax.fori_loop(0, steps, lambda _, state: update(config, state, task), state)


@jax.jit
def _best(state: State, task: Instance) -> tuple[jax.Array, jax.Array]:
    """Returns the best placement's genes and value, in the form that `search_population` takes."""
    return to_genes(decisions(task, state.placement[None]), task.problem.devices)[:, 0, 0], state.value
