"""Instances of the sharding agent: reduced problems with features from the dual, padded, and sets of them by name.

Letters used in shapes: G groups of nodes with S strategies in all and at most O each, E edges with C pairs of
strategies, K **slots** (a strategy of one of the two groups of an edge), T watched times; all padded. Arrays over
strategies, slots and pairs are flat lists: matrices would take up to a hundred times the memory on the contest's
problems.

Costs are in units of the best plan that messages alone give (`guide.settle`), bytes in units of the largest room.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.indexing import filled
from graphrl.envs.graph_environment import stacked
from graphrl.errors import ProblemError
from graphrl.files import quote_path
from graphrl.graphs.datasets.sets import GeneratedSet
from graphrl.graphs.padding import bucket
from graphrl.networks.base import signed_log
from graphrl.sharding.datasets import load_problem, parse_set
from graphrl.sharding.guide import Settled, settle
from graphrl.sharding.layers import FAMILY
from graphrl.sharding.moves import WATCHED, Model, check_costs, model_of
from graphrl.sharding.problem import ShardingProblem, offsets, owners
from graphrl.sharding.reduce import incidence, reduce_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import compile_moves

STRATEGY_FEATURES = (
    "cost",  # all costs are logs, less the least of the group: log(1 + c G / cost of the messages' plan)
    "priced",  # cost with the price of bytes
    "belief",  # min-marginal: priced cost with the messages of all edges
    "given_labels",  # priced cost with the edges', if other groups have the messages' labels
    "change",  # of the energy, if other groups keep those of the best plan; less than 0 if it falls
    "price",  # of bytes
    "bytes",  # most of the room of a watched time
    "is_least_belief",
    "is_label",
    "is_best",
)
GROUP_FEATURES = (
    "strategies",  # log of their number
    "degree",  # log of 1 + number of edges
    "excess",  # largest excess of the messages' labels at watched times of the group, a share of the room, -1 to 1
    "best_excess",  # the same of the best plan
)
PAIR_FEATURES = ("cost", "reparametrised")  # logs as above: less the edge's least, and less the messages along the edge
BELIEF, IS_BEST = map(STRATEGY_FEATURES.index, ("belief", "is_best"))
MOST_LOG = 16.0  # logs are cut here
DEAR = 1.0  # cost units to which the costs of pairs are cut: those of a plan with a dearer one do not matter
ROUNDS = 40  # of the dual
SKIP = 1_000_000  # seeds between a problem that has no choices, or no plan, and its replacement
TRIES = 100  # replacements

Log = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ReducedSizes:
    """Array sizes of a padded instance: instances of equal sizes share one compiled program."""

    ops: int  # groups
    options: int  # of the group with the most
    strategies: int
    slots: int
    pairs: int
    times: int

    def covers(self, other: "ReducedSizes") -> bool:
        """True if an instance of sizes `other` fits."""
        return all(a >= b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReducedInstance:
    """A reduced problem with its features; a batch has a leading axis on every array. It is its own observation."""

    num_ops: jax.Array  # [] int32, real groups
    sizes: jax.Array  # [G] int32, number of strategies; 1 for padding
    first: jax.Array  # [G] int32, the first strategy; S for padding
    group: jax.Array  # [S] int32; G for padding
    place: jax.Array  # [S] int32, place in its group
    cost: jax.Array  # [S] float32, cost units; 0 for padding
    usage: jax.Array  # [S, T] float32, byte units; 0 for padding
    room: jax.Array  # [T] float32, byte units; 0 for padding
    weight: jax.Array  # [T] float32, penalty: cost units per byte unit above the room
    constant: jax.Array  # [] float32, cost units of all that is decided
    slot_strategy: jax.Array  # [K] int32; S for padding
    slot_other: jax.Array  # [K] int32, the group at the other end; 0 for padding
    slot_pair: jax.Array  # [K] int32, the pair with the other group's strategy 0
    slot_stride: jax.Array  # [K] int32, pairs from there to that with its strategy 1
    pair_cost: jax.Array  # [C] float32, cost units, at most `DEAR`; 0 for padding
    pair_first: jax.Array  # [C] int32, the slot of the first group's strategy; K for padding
    pair_last: jax.Array  # [C] int32
    best: jax.Array  # [G] int32, labels of the best plan by messages
    strategy_features: jax.Array  # [S, len(STRATEGY_FEATURES)] float32; 0 for padding
    group_features: jax.Array  # [G, len(GROUP_FEATURES)] float32; 0 for padding
    pair_features: jax.Array  # [C, len(PAIR_FEATURES)] float32; 0 for padding
    option: jax.Array  # [O] int32, 0 to O - 1

    @property
    def mask(self) -> jax.Array:
        """`[G]` bool, True for real groups."""
        return jnp.arange(self.sizes.shape[0], dtype=jnp.int32) < self.num_ops

    @property
    def action_mask(self) -> jax.Array:
        """`[G, O]` bool, True for strategies that are there; the first one of padding."""
        return self.option[None] < self.sizes[:, None]


def energies(instance: ReducedInstance, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes the energy of labels `[G]` int32, and that of every strategy if all other groups keep their labels.

    The energy is the cost with penalties for bytes above the room at watched times.

    Returns:
      `[]` and `[S]` float32, cost units. The second is up to a constant for each group.
    """
    groups, strategies = label.shape[0], instance.cost.shape[0]
    pair = instance.slot_pair + instance.slot_stride * label[instance.slot_other]
    of_edges = jax.ops.segment_sum(instance.pair_cost[pair], instance.slot_strategy, strategies)
    chosen = jnp.where(instance.mask, instance.first + label, strategies)

    def of_chosen(values: jax.Array) -> jax.Array:
        return values.at[chosen].get(mode="fill", fill_value=0)

    usage = of_chosen(instance.usage)
    over = usage.sum(0) - instance.room
    penalty = (instance.weight * jnp.maximum(over, 0)).sum()
    energy = (of_chosen(instance.cost) + of_chosen(of_edges) / 2).sum() + penalty
    owner = jnp.minimum(instance.group, groups - 1)
    after = over[None] + instance.usage - usage[owner]
    penalties = (instance.weight[None] * jnp.maximum(after, 0)).sum(1)
    return energy + instance.constant, instance.cost + of_edges + penalties


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A reduced problem with its features, before padding.

    Attributes:
      name: name of the problem.
      ops: range of its groups.
      sizes: sizes without padding.
      arrays: fields of `ReducedInstance` without padding.
    """

    name: str
    ops: range
    sizes: ReducedSizes
    arrays: dict[str, np.ndarray]


class ProblemSet(GeneratedSet):
    """A set of random problems, or of parts of a file, by seed; see `sharding.datasets`."""

    def graph(self, seed: int) -> Prepared:  # type: ignore[override]
        """Prepares the problem of a seed. One without choices or without a plan is replaced by that of a seed which is
        `SKIP` larger, and so on.

        Raises:
          GraphrlError: the file cannot be read; or `TRIES` problems in a row have no choices, or no plan.
        """
        fault = ProblemError("all ops have one choice left")
        for number in range(TRIES):
            problem = load_problem(f"{self.kind}@{seed + number * SKIP}")
            try:
                reduced = reduce_problem(problem)
                if len(reduced.sizes):
                    return prepare(problem, reduced)
            except ProblemError as error:  # a part of a file may have no plan
                fault = error
        raise ProblemError(f"{self.kind}: none of {TRIES} problems from seed {seed} on is of use; the last: {fault}")


def problem_set(name: str) -> ProblemSet:
    """Parses the name of a set. Raises ProblemError: it is no set's."""
    parsed = parse_set(name)
    if parsed is None:
        raise ProblemError(f"{quote_path(name)} is no set of problems: examples are {FAMILY}:200x64@7, FILE:2000x64@7")
    return ProblemSet(*parsed)


def load(names: Sequence[str]) -> list[Prepared]:
    """Prepares the problems of sets.

    Raises:
      GraphrlError: a file cannot be read.
      ProblemError: a name is no set's.
    """
    return [problems.graph(seed) for problems in map(problem_set, names) for seed in problems.seeds]


def common_sizes(prepared: Sequence[Prepared]) -> ReducedSizes:
    """Returns the bucketed sizes that fit all of the instances."""
    columns = zip(*(dataclasses.astuple(one.sizes) for one in prepared), strict=True)
    return ReducedSizes(*(max(8, bucket(max(column))) for column in columns))


def make_instances(prepared: Sequence[Prepared], to: ReducedSizes) -> ReducedInstance:
    """Pads instances to the sizes `to`, and stacks them, on the host."""
    return stacked([padded(one, to) for one in prepared])


def padded(prepared: Prepared, to: ReducedSizes) -> ReducedInstance:
    """Pads an instance, on the host."""
    lengths = {
        "sizes": to.ops, "first": to.ops, "best": to.ops, "group_features": to.ops, "room": to.times,
        "weight": to.times, "option": to.options,
    }  # fmt: skip
    lengths |= dict.fromkeys(("group", "place", "cost", "usage", "strategy_features"), to.strategies)
    lengths |= dict.fromkeys(("slot_strategy", "slot_other", "slot_pair", "slot_stride"), to.slots)
    lengths |= dict.fromkeys(("pair_cost", "pair_first", "pair_last", "pair_features"), to.pairs)
    fills = {"sizes": 1, "first": to.strategies, "group": to.ops, "slot_strategy": to.strategies}
    fills |= {"pair_first": to.slots, "pair_last": to.slots}
    fields: dict[str, Any] = {"option": np.arange(to.options, dtype=np.int32)}
    for name, values in prepared.arrays.items():
        if name == "usage":
            values = np.pad(values, [(0, 0), (0, to.times - values.shape[1])])
        kind = np.int32 if values.dtype.kind in "iu" else np.float32
        size = lengths.get(name)
        fields[name] = kind(values) if size is None else filled(values, size, kind, fills.get(name, 0))
    return ReducedInstance(**fields)


def prepare(problem: ShardingProblem, reduced: Reduced) -> Prepared:
    """Computes the features of a reduced problem of at least one group, after `ROUNDS` rounds of its dual.

    Raises:
      ProblemError: costs are too large.
    """
    compile_moves()
    model = model_of(reduced)
    check_costs(model)
    settled = settle(reduced, ROUNDS)
    groups, count = len(reduced.sizes), int(settled.state.numbers[WATCHED])
    watched = settled.state.watched[:count]
    unit, byte_unit = float(max(1, settled.cost + reduced.constant)), float(max(1, reduced.room.max(initial=1)))
    group, place = owners(reduced.offset)
    slots, pairs = _slots(model), _pairs(reduced, model, settled)
    # a penalty of twice the price, and at least one that makes the whole room worth the plan
    weight = np.maximum(2 * settled.multipliers, unit / byte_unit)

    def log(cost: np.ndarray) -> np.ndarray:
        return np.clip(signed_log(cost * (groups / max(1.0, float(settled.cost)))), -MOST_LOG, MOST_LOG)

    arrays = {
        "num_ops": np.int32(groups),
        "sizes": reduced.sizes,
        "first": reduced.offset[:-1],
        "group": group,
        "place": place,
        "cost": reduced.cost / unit,
        "usage": settled.state.bytes[:, :count] / byte_unit,
        "room": reduced.room[watched] / byte_unit,
        "weight": weight * (byte_unit / unit),
        "constant": np.float32(reduced.constant / unit),
        **slots,
        "pair_cost": np.minimum(model.edge_cost / unit, DEAR),
        "pair_first": pairs.first,
        "pair_last": pairs.last,
        "best": settled.best,
        "strategy_features": _strategy_features(reduced, model, settled, slots, weight, log),
        "group_features": _group_features(reduced, model, settled),
        "pair_features": np.stack([log(pairs.above_least), log(pairs.reparametrised)], 1),
    }
    sizes = ReducedSizes(
        groups, int(reduced.sizes.max()), len(reduced.cost), len(slots["slot_pair"]), len(model.edge_cost), count
    )
    return Prepared(problem.name, range(groups), sizes, arrays)


def _slots(model: Model) -> dict[str, np.ndarray]:
    """Arrays of the slots, in the order of the messages: strategies of the group of incidence x, for x from 0 on."""
    sizes = np.diff(model.offset)
    group = owners(model.first)[0]
    incidence, place = owners(offsets(sizes[group]))
    return {
        "slot_strategy": model.offset[group[incidence]] + place,
        "slot_other": model.other[incidence],
        "slot_pair": model.base[incidence] + place * model.own[incidence],
        "slot_stride": model.across[incidence],
    }


class _Pairs(NamedTuple):
    """Slots of both ends of each pair, and its cost less the edge's least, and less the messages: `[C]` each."""

    first: np.ndarray
    last: np.ndarray
    above_least: np.ndarray
    reparametrised: np.ndarray


def _pairs(reduced: Reduced, model: Model, settled: Settled) -> _Pairs:
    edge, place = owners(reduced.edge_offset)
    width = reduced.sizes[reduced.edges[:, 1]]
    group, sent = owners(model.first)[0], settled.messages
    of_incidence = incidence(len(reduced.sizes), reduced.edges)[1]
    is_first = reduced.edges[of_incidence, 0] == group
    starts = np.zeros((2, len(reduced.edges)), np.int64)  # the first slot at each end
    starts[0, of_incidence[is_first]] = sent.offset[:-1][is_first]
    starts[1, of_incidence[~is_first]] = sent.offset[:-1][~is_first]
    first, last = starts[0][edge] + place // width[edge], starts[1][edge] + place % width[edge]
    cost = model.edge_cost.astype(float)
    least = np.minimum.reduceat(cost, reduced.edge_offset[:-1]) if len(reduced.edges) else np.zeros(0)
    messages = (sent.message[first] + sent.message[last]) / sent.scale
    return _Pairs(first, last, cost - least[edge], np.maximum(0, cost - messages))


def _strategy_features(
    reduced: Reduced, model: Model, settled: Settled, slots: Mapping[str, np.ndarray], weight: np.ndarray, log: Log
) -> np.ndarray:
    """Returns `[S, len(STRATEGY_FEATURES)]`; `weight` is the penalty of a byte at each watched time."""
    sent, state, count = settled.messages, settled.state, int(settled.state.numbers[WATCHED])
    group, place = owners(reduced.offset)

    def above_least(values: np.ndarray) -> np.ndarray:
        return values - np.minimum.reduceat(values, reduced.offset[:-1])[group]

    def edges_given(label: np.ndarray) -> np.ndarray:
        pair = slots["slot_pair"] + slots["slot_stride"] * label[slots["slot_other"]]
        return np.bincount(slots["slot_strategy"], model.edge_cost[pair].astype(float), len(priced))

    priced = sent.theta / sent.scale
    belief = priced + np.bincount(slots["slot_strategy"], sent.message / sent.scale, len(priced))
    price = state.bytes[:, :count] @ settled.multipliers
    share = state.bytes[:, :count] / np.maximum(1, reduced.room[state.watched[:count]])
    gap = above_least(belief)
    best = reduced.offset[:-1] + settled.best
    usage = state.bytes[:, :count]
    over = usage[best].sum(0) - reduced.room[state.watched[:count]]
    energy = reduced.cost + edges_given(settled.best) + np.maximum(0, over + usage - usage[best][group]) @ weight
    columns = [
        log(above_least(reduced.cost.astype(float))),
        log(above_least(priced)),
        log(gap),
        log(above_least(priced + edges_given(sent.label))),
        log(energy - energy[best][group]),
        log(above_least(price)),
        np.minimum(1, share.max(1, initial=0)),
        gap <= 0,
        place == sent.label[group],
        place == settled.best[group],
    ]
    return np.stack(columns, 1).astype(np.float32)


def _group_features(reduced: Reduced, model: Model, settled: Settled) -> np.ndarray:
    """Returns `[G, len(GROUP_FEATURES)]`."""
    state, count = settled.state, int(settled.state.numbers[WATCHED])
    room = reduced.room[state.watched[:count]]
    most = np.maximum.reduceat(state.bytes[:, :count], reduced.offset[:-1], 0)

    def excess(label: np.ndarray) -> np.ndarray:
        taken = state.bytes[reduced.offset[:-1] + label, :count].sum(0)
        share = np.clip((taken - room) / np.maximum(1, room), -1, 1)
        return np.where(most > 0, share[None], -1.0).max(1, initial=-1)

    columns = [
        np.log(reduced.sizes), np.log1p(np.diff(model.first)), excess(settled.messages.label), excess(settled.best)
    ]  # fmt: skip
    return np.stack(columns, 1).astype(np.float32)
