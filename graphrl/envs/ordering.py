"""`Ordering-v0`: choose the order of the ops, one by one (Topoformer).

Instances are padded graphs with features for a network, computed on the host in NumPy.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.indexing import add
from graphrl.costs.problem import Problem
from graphrl.decoding import memory
from graphrl.decoding.memory import GraphBuffers, Memory
from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.graph_environment import GraphEnvironment, stacked
from graphrl.errors import PlanError
from graphrl.graphs.features import RELATIONS, padded_order_features, padded_relations
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.plan import Plan

if TYPE_CHECKING:
    from graphrl.plan.plot import Picture


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OrderingInstance:
    """One graph with features for the network; a batch has a leading axis g on every array."""

    graph: PaddedGraph
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops (graphs/features.py); 0 for padding
    relation: jax.Array | np.ndarray  # [n, n] uint8, relation of op j to op i (graphs/features.py)

    @property
    def num_ops(self) -> jax.Array:
        """Number of real ops: `[]` int32."""
        return self.graph.num_ops


def make_instance(graph: ComputationGraph, to: Sizes | None = None) -> OrderingInstance:
    """Converts a graph to an instance, padded to `to` (by default its size bucket).

    Raises:
      GraphError: `to` is too small for the graph.
    """
    to = common_sizes([graph]) if to is None else to
    return OrderingInstance(pad(graph, to), padded_order_features(graph, to.ops), padded_relations(graph, to.ops))


def make_instances(graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> OrderingInstance:
    """Converts graphs to a batch (leading axis g), padded to `to` (by default the smallest bucket that covers all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return stacked([make_instance(graph, to) for graph in graphs])


class Observation(NamedTuple):
    """Observation of a graph with n ops (including padding) and F features per op.

    `nodes`, `relation` and `mask` are constant within an episode: a roll-out need store only the other fields.

    Attributes:
      nodes: `[n, F]` float32, features of ops (`graphs.features.ORDER_FEATURES`), without units; 0 for padding.
        Constant.
      relation: `[n, n]` uint8, relation of op j to op i, an index of `graphs.features.RELATIONS`; 8 for padding.
        Constant.
      mask: `[n]` bool, True for real ops. Constant.
      action_mask: `[n]` bool, True for ready ops.
      scheduled: `[n]` bool, True for ops that have run.
      last: `[]` int32, the op that ran last; n before the first.
      live: `[]` float32, current memory in units of M, the largest memory of a single op, as in the reward.
      peak: `[]` float32, peak memory so far, in units of M. At the end it is minus the reward of a legal episode.
    """

    nodes: jax.Array
    relation: jax.Array
    mask: jax.Array
    action_mask: jax.Array
    scheduled: jax.Array
    last: jax.Array
    live: jax.Array
    peak: jax.Array


class State(NamedTuple):
    """State of one episode."""

    waits: jax.Array  # [n] int32, number of inputs and predecessors that each op waits for; -1 once it has run
    buffers: GraphBuffers  # buffers of the graph: constant
    memory: Memory
    step: jax.Array  # [] int32, number of ops that have run
    last: jax.Array  # [] int32, the op that ran last; n before the first
    order: jax.Array  # [n] int32, the ops in the order in which they ran; n after the last
    unit: jax.Array  # [] float32, byte units: the normaliser of the reward, M


@dataclasses.dataclass(frozen=True)
class OrderingEnv(GraphEnvironment[OrderingInstance]):
    """`Ordering-v0`: choose the next op among those that are ready, for a low peak of memory (Topoformer).

    - Observation: features and relations of the ops, masks of ready ops and of ops that have run, memory
      (`Observation`).
    - Action: an op, `[]` int32. One that is not ready is illegal.
    - Reward: 0, and after the last op -peak / M, where M is the largest memory of a single op: the bytes that it reads,
      writes and uses as workspace. Rewards are thus independent of units and sizes, and no order earns more than about
      -1 (-1 exactly, unless outputs reuse the buffers of inputs, or an op reads two tensors of one buffer, which count
      twice in M). If no op needs memory, M is 1 byte unit. An illegal action earns -(all bytes of the graph) / M, and
      no order earns less.
    - Peak: exact for whole bytes below 2^24 units (`graphs/padding.py`), with kept tensors, aliases, reuses and
      workspace, but without weights. A step takes time linear in the number of edges.
    - End: terminated after the last op, and by an illegal action, which has no other effect. Legal episodes have one
      step per op.
    - State: the number of inputs that each op waits for, memory, and the order so far. No random numbers are drawn.
    - Info: "live" and "peak", current and peak bytes so far, for custom rewards.

    `rollout.py` and `beam.py` of `graphrl/decoding` decode whole orders in one call.

    Version history: v0, the first.
    """

    @property
    def problem(self) -> Problem:
        """The problem of its plans."""
        return Problem("peak_memory", 1)

    def reset(self, key: jax.Array, instance: OrderingInstance) -> tuple[State, TimeStep[Observation]]:
        """Starts before the first op. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        graph = instance.graph
        buffers = memory.buffers(graph)
        start = memory.start(graph, buffers)
        n = graph.sizes.ops
        unit = _largest_op(graph, buffers)
        state = State(
            waits=graph.indegree[:n],
            buffers=buffers,
            memory=start,
            step=jnp.int32(0),
            last=jnp.int32(n),
            order=jnp.full(n, n, jnp.int32),
            unit=jnp.where(unit > 0, unit, 1),
        )
        no = jnp.asarray(False)
        return state, TimeStep(_observe(state, instance), jnp.float32(0), no, no, _info(state, graph))

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: OrderingInstance
    ) -> tuple[State, TimeStep[Observation]]:
        """Runs an op. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        graph, n = instance.graph, instance.graph.sizes.ops
        legal = ((jnp.arange(n, dtype=jnp.int32) == action) & (state.waits == 0)).any()
        op = jnp.where(legal, action, n)
        after = State(
            waits=state.waits - _released(graph, op),
            buffers=state.buffers,
            memory=memory.run(graph, state.buffers, state.memory, op, memory.reads(graph, state.buffers, op)),
            step=state.step + legal.astype(jnp.int32),
            last=jnp.where(legal, op, state.last),
            order=jnp.where(jnp.arange(n, dtype=jnp.int32) == state.step, op, state.order),
            unit=state.unit,
        )
        complete = legal & (after.step == graph.num_ops)
        cost = jnp.where(legal, jnp.where(complete, after.memory.peak, 0), _all_bytes(graph)) / state.unit
        timestep = TimeStep(
            _observe(after, instance), 0 - cost, complete | ~legal, jnp.asarray(False), _info(after, graph)
        )
        return after, timestep

    def observation_spec(self, instance: OrderingInstance) -> Any:
        """See `Environment`."""
        n, features = instance.nodes.shape
        fields: dict[str, Any] = dict(  # noqa: C408  (reads as the constructor that it fills)
            nodes=specs.floats((n, features)),
            relation=specs.ArraySpec((n, n), np.dtype(np.uint8), 0, len(RELATIONS)),
            mask=specs.booleans((n,)),
            action_mask=specs.booleans((n,)),
            scheduled=specs.booleans((n,)),
            last=specs.integers((), 0, n),
            live=specs.floats((), 0),
            peak=specs.floats((), 0),
        )
        return Observation(**fields)

    def action_spec(self, instance: OrderingInstance) -> specs.ArraySpec:
        """See `Environment`."""
        return specs.choices((), instance.nodes.shape[0])

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> OrderingInstance:
        """See `GraphEnvironment`."""
        return make_instances(graphs, to)

    def _plan(self, graph: ComputationGraph, instance: OrderingInstance, state: State) -> Plan:
        if state.step < len(graph.ops):
            raise PlanError(f"{state.step} of {len(graph.ops)} ops have run: a plan has all, env.render draws these")
        return _plan_of(graph, state, self.problem)

    def _picture(self, graph: ComputationGraph, instance: OrderingInstance, state: State) -> "Picture":
        if not state.step:
            raise PlanError("no op has run yet: a picture needs at least one")
        graph = graph if state.step == len(graph.ops) else _beginning(graph, state)
        return _plan_of(graph, state, self.problem).plot()


def _observe(state: State, instance: OrderingInstance) -> Observation:
    n = instance.graph.sizes.ops
    return Observation(
        nodes=jnp.asarray(instance.nodes),
        relation=jnp.asarray(instance.relation),
        mask=jnp.arange(n, dtype=jnp.int32) < instance.graph.num_ops,
        action_mask=state.waits == 0,
        scheduled=state.waits < 0,
        last=state.last,
        live=state.memory.live / state.unit,
        peak=state.memory.peak / state.unit,
    )


def _beginning(graph: ComputationGraph, state: State) -> ComputationGraph:
    """Returns the graph of the ops so far, whose outputs are the tensors that the others need, so that memory is as in
    the whole graph. Its name says how many ops they are.
    """
    ran = set(state.order[: state.step].tolist())
    later = {name for index, op in enumerate(graph.ops) if index not in ran for name in op.inputs}
    ops = tuple(op for index, op in enumerate(graph.ops) if index in ran)
    outputs = tuple(t.name for op in ops for t in op.outputs if t.name in later or t.name in graph.outputs)
    name = f"{graph.name}, {len(ops):,} of {len(graph.ops):,} ops"
    return dataclasses.replace(graph, name=name, ops=ops, outputs=outputs)


def _plan_of(graph: ComputationGraph, state: State, problem: Problem) -> Plan:
    """Returns the plan of the ops so far; `graph` has no others."""
    ran = state.order[: state.step]
    order = np.searchsorted(np.sort(ran), ran)  # their numbers in `graph`
    on_one = np.zeros(len(ran), np.int64)
    return Plan.from_order(graph, problem, on_one, order, method="Ordering-v0", seconds=0.0, evaluations=1, seed=0)


def _info(state: State, graph: PaddedGraph) -> dict[str, jax.Array]:
    return {"live": state.memory.live * graph.byte_unit, "peak": state.memory.peak * graph.byte_unit}


def _released(graph: PaddedGraph, op: jax.Array) -> jax.Array:
    """Computes by how much an op, when it runs, decrements each element of `waits`, including its own: `[n]` int32."""
    n = graph.sizes.ops
    rows = (graph.row_owner == op)[:, None] & (graph.row_entry < n)
    released = add(jnp.zeros(n + 1, jnp.int32), jnp.minimum(graph.row_entry, n), rows.astype(jnp.int32))
    return add(released, op, jnp.int32(1))[:n]


def _largest_op(graph: PaddedGraph, buffers: GraphBuffers) -> jax.Array:
    """Computes M of `OrderingEnv`'s reward, the largest memory of a single op: `[]` float32, byte units."""
    t = graph.sizes.tensors
    tensor = jnp.minimum(graph.use_tensor, t - 1)
    op_bytes = graph.workspace.at[graph.producer].add(graph.owned_bytes)
    return op_bytes.at[graph.use_op].add(graph.owned_bytes[buffers.root[tensor]], mode="drop").max()


def _all_bytes(graph: PaddedGraph) -> jax.Array:
    """Sums all tensors and the largest workspace, an upper bound of the peak: `[]` float32, byte units."""
    return graph.owned_bytes.sum() + graph.workspace.max()
