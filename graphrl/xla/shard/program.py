"""A function as a sharding problem: its equations are nodes, and moves of values between them are edges.

| node | strategies |
|---|---|
| argument, carried value of a scan | all ways to split it evenly |
| equation | those of strategies.py; the unsplit one alone if the equation is not known |
| slice that a scan takes of an array, stack of its results | that of the slice; the dimension of steps is whole |

Costs are picoseconds of one device: work by roofline, collectives by the links of the mesh, times the steps of scans.
An edge costs what it takes to move a value from the split in which it is left to the one in which it is read. A result
of the type of an argument, such as a gradient or a new weight, is left as that argument is split.

A value takes the bytes of its shard from the equation that writes it to the last one that reads it; arguments and
results stay. Values that XLA fuses into their readers take none, as `checkpoint/seconds.py` decides, and then their
operands are read where they would be. Operands that are gathered for one equation are not counted.
"""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import NamedSharding

from graphrl.graphs.readers.jaxpr.flatten import called
from graphrl.graphs.readers.jaxpr.work import (
    PARTIAL_READS,
    array_bytes,
    equation_flops,
    inner_jaxprs,
    inner_work,
    scan_operands,
)
from graphrl.graphs.readers.work import Work as InnerWork
from graphrl.graphs.roofline import Chip
from graphrl.sharding.problem import UNLIMITED, ShardingProblem
from graphrl.xla.checkpoint.collectives import TAKE, Move, collective_seconds, moves
from graphrl.xla.checkpoint.equations import VIEWS, is_body, is_fused, is_kernel, is_reduction, is_view
from graphrl.xla.checkpoint.program import inlined
from graphrl.xla.checkpoint.seconds import Fusing, Inlined, gradient_seconds
from graphrl.xla.checkpoint.shards import CONSTRAINTS, PAIRED, Key, Layout, Scope, Shards, Spec, replicated, spec_of
from graphrl.xla.shard.strategies import Strategy, Work, is_known, specs, strategies, unsplit

UNIT = 1e-12  # seconds


class Read(NamedTuple):
    """An operand of a node: the value, and how often a step of the whole function reads it."""

    key: Key
    trips: int


@dataclasses.dataclass
class Node:
    """A node of the problem.

    Attributes:
      name: the primitive's name, or "argument", "carry", "slice", "stack".
      reads: its operands, in the order of its strategies' specs; key -1 for literals.
      results: values that it writes.
      strategies: its strategies.
      trips: number of its runs.
      bytes: bytes of each result in memory on one device alone; 0 if the result is fused into its readers.
      start: time from which the results are in memory.
    """

    name: str
    reads: list[Read]
    results: list[Key]
    strategies: list[Strategy]
    trips: int
    bytes: list[int]
    start: int


class Program:
    """A traced function on a mesh, with the strategies of all its equations.

    Args:
      closed: the function.
      layout, chip: the devices.

    Attributes:
      closed: the function without calls of `jax.jit` and dead code.
      layout: as given.
      scope: its variables, equations and inner jaxprs.
      nodes: nodes, in execution order, the arguments first.
      producer: value -> its node, and number among the node's results.
      wanted: (id of a scope, place of an equation) -> for each operand, the node that reads it and its number there.
      leaving: id of the scope of the function, or of a scan's body -> the same for each of its results; None for
        results that are left as they are written.
      avals: value -> type.
      unknown: primitive whose equations are not split -> their number.
    """

    def __init__(self, closed: core.ClosedJaxpr, layout: Layout, chip: Chip) -> None:
        closed = inlined(closed)
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        self.closed, self.layout = core.ClosedJaxpr(jaxpr, closed.consts), layout
        self.scope = Shards(self.closed, layout, [replicated(aval) for aval in closed.in_avals]).scope
        self.nodes: list[Node] = []
        self.producer: dict[Key, tuple[int, int]] = {}
        self.wanted: dict[tuple[int, int], list[tuple[int, int] | None]] = {}
        self.leaving: dict[int, list[tuple[int, int] | None]] = {}
        self.avals: dict[Key, Any] = {}
        self.unknown: Counter[str] = Counter()
        self._chip, self._time, self._last = chip, 0, dict[Key, int]()
        self._written, self._in_memory = {*_written(jaxpr)}, set[Key]()
        self._list()

    def problem(self, name: str, limit: int | None) -> ShardingProblem:
        """Returns the problem with `limit` bytes of memory a device; None for no limit."""
        sizes = [len(node.strategies) for node in self.nodes]
        cost = [round(s.seconds * node.trips / UNIT) for node in self.nodes for s in node.strategies]
        usage = [self._usage(node, strategy) for node in self.nodes for strategy in node.strategies]
        edges = sorted(self._edges().items())
        return ShardingProblem(
            name,
            np.cumsum([0, *sizes], dtype=np.int64),
            np.array(cost, np.int64),
            np.array(usage, np.int64),
            np.array(self._intervals(), np.int64).reshape(-1, 2),
            np.array([pair for pair, _ in edges], np.int64).reshape(-1, 2),
            np.cumsum([0, *(matrix.size for _, matrix in edges)], dtype=np.int64),
            np.concatenate([np.zeros(0, np.int64), *(matrix.ravel() for _, matrix in edges)]),
            UNLIMITED if limit is None else limit,
        )

    def collectives(self, plan: Sequence[int]) -> dict[str, float]:
        """Returns the bytes that one device sends by each kind of collective, under the strategies of a plan."""
        sent: defaultdict[str, float] = defaultdict(float)

        def count(steps: Iterable[Move], trips: int) -> None:
            for move in steps:
                devices = self.layout.count(move.axes)
                sent[move.kind] += move.bytes * (devices - 1) / devices * trips

        for node, chosen in zip(self.nodes, plan, strict=True):
            count(node.strategies[chosen].sums, node.trips)
        for key, have, want, trips in self._changes():
            first, number = have
            last, operand = want
            before = self.nodes[first].strategies[plan[first]].results[number]
            after = self.nodes[last].strategies[plan[last]].operands[operand]
            count(moves(self.layout, self.avals[key], before, after), trips)
        return {kind: size for kind, size in sorted(sent.items()) if kind != TAKE}

    # Nodes.

    def _list(self) -> None:
        """Adds the nodes of arguments and equations, and ties arguments to the results of their type."""
        jaxpr = self.closed.jaxpr
        constants = {*jaxpr.constvars}
        for var in (*jaxpr.constvars, *jaxpr.invars):
            own = [replicated(var.aval)] if var in constants else specs(var.aval, self.layout)
            self._add("argument", [], [(self.scope.keys[var], var.aval)], [Strategy((s,), (s,), 0.0) for s in own])
        self._time += 1
        self._walk(self.scope, 1)
        self._time += 1
        for key in self._keys((*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars), self.scope):
            self._use(key, self._time)
        first = len(jaxpr.constvars)
        self.leaving[id(self.scope)] = leaving = list[tuple[int, int] | None]()
        outputs = self._keys(jaxpr.outvars, self.scope)
        for key, tie in zip(outputs, ties(self.closed.in_avals, self.closed.out_avals), strict=True):
            if tie is None:
                leaving.append(None)
                continue
            self.nodes[first + tie].reads.append(Read(key, 1))  # as the next call takes it
            leaving.append((first + tie, 0))

    def _add(
        self, name: str, reads: list[Read], results: Sequence[tuple[Key, Any]], options: list[Strategy],
        trips: int = 1, written: bool = True,
    ) -> int:  # fmt: skip
        """Adds a node; returns its number."""
        sizes = [array_bytes(aval) if written else 0 for _, aval in results]
        keys = [key for key, _ in results]
        self.nodes.append(Node(name, reads, keys, options, trips, sizes, self._time))
        for number, (key, aval) in enumerate(results):
            self.producer[key] = len(self.nodes) - 1, number
            self.avals[key] = aval
            self._last.setdefault(key, self._time)
            if written or (name in VIEWS | {"passed", "slice"} and reads[0].key in self._in_memory):
                self._in_memory.add(key)
        for read in reads:
            self._use(read.key, self._time)
        return len(self.nodes) - 1

    def _use(self, key: Key, time: int) -> None:
        if key >= 0:
            self._last[key] = max(self._last.get(key, 0), time)

    def _keys(self, atoms: Iterable[Any], scope: Scope) -> list[Key]:
        return [-1 if isinstance(atom, core.Literal) else scope.keys[atom] for atom in atoms]

    def _walk(self, scope: Scope, trips: int) -> None:
        """Adds the nodes of a jaxpr that runs a number of times."""
        for place, eqn in enumerate(scope.jaxpr.eqns):
            self._time += 1
            call = called(eqn) if place in scope.inner else None
            if call is not None and eqn.primitive.name not in PAIRED:
                (inner,) = scope.inner[place].values()
                self._walk(inner, trips)
            elif eqn.primitive.name == "scan":
                self._scan(scope, place, eqn, trips)
            elif eqn.primitive.name in PAIRED:
                self._pairs(scope, place, eqn, trips)
            else:
                self._equation(scope, place, eqn, trips)

    def _equation(self, scope: Scope, place: int, eqn: Any, trips: int) -> None:
        atoms = (*eqn.invars, *eqn.outvars)
        avals = [atom.aval for atom in atoms]
        reads = [Read(key, trips) for key in self._keys(eqn.invars, scope)]
        results = [(scope.keys[var], var.aval) for var in eqn.outvars]
        work = self._work(eqn, reads)
        spec = self._constraint(eqn)
        if spec is not None:
            options = [Strategy((spec,), (spec,), 0.0)]
        elif place in scope.ops and is_known(eqn):
            factors = scope.ops[place].factors
            options = strategies(eqn, factors, avals, len(reads), work, self.layout, self._chip)
        else:
            self.unknown[eqn.primitive.name] += 1
            options = [unsplit(avals, len(reads), work, self._chip)]
        number = self._add(eqn.primitive.name, reads, results, options, trips, id(eqn) in self._written)
        self.wanted[id(scope), place] = [(number, k) for k in range(len(reads))]

    def _constraint(self, eqn: Any) -> Spec | None:
        """Returns the split that a constraint within the function asks for; None for others, and for other meshes."""
        sharding = eqn.params.get("sharding") if eqn.primitive.name in CONSTRAINTS else None
        if not isinstance(sharding, NamedSharding):
            return None
        spec = spec_of(sharding.spec, len(eqn.outvars[0].aval.shape))
        return spec if {*itertools.chain(*spec)} <= {*self.layout.sizes} else None

    def _work(self, eqn: Any, reads: Sequence[Read]) -> Work:
        """Returns the work of an equation: of fused ones, only what is in memory is read and written."""
        nothing = Work(0.0, (0.0,) * len(eqn.invars), (0.0,) * len(eqn.outvars))
        if is_view(eqn):
            return nothing
        if is_body(eqn):
            bodies = {
                key: InnerWork(0, gradient_seconds(_closed(inner), self._chip), 0)
                for key, inner in inner_jaxprs(eqn.params).items()
            }
            literals = [atom.val if isinstance(atom, core.Literal) else None for atom in eqn.invars]
            return nothing._replace(flops=inner_work(eqn, bodies, literals).runtime * self._chip.flops_per_second)
        flops = float(equation_flops(eqn))
        if id(eqn) not in self._written:
            return nothing._replace(flops=flops)
        sizes = [
            float(array_bytes(atom.aval)) if is_kernel(eqn) or read.key in self._in_memory else 0.0
            for atom, read in zip(eqn.invars, reads, strict=True)
        ]
        writes = tuple(float(array_bytes(var.aval)) for var in eqn.outvars)
        if sizes and eqn.primitive.name in PARTIAL_READS:
            sizes[0] = min(sizes[0], sum(writes))
        return Work(flops, tuple(sizes), writes)

    def _pairs(self, scope: Scope, place: int, eqn: Any, trips: int) -> None:
        """Adds a node for each operand that an equation passes on."""
        wanted: list[tuple[int, int] | None] = [None] * len(eqn.invars)
        keys = self._keys(eqn.invars, scope)
        for k, (key, var) in enumerate(zip(keys, eqn.outvars, strict=False)):
            options = [Strategy((spec,), (spec,), 0.0) for spec in specs(var.aval, self.layout)]
            results = [(scope.keys[var], var.aval)]
            wanted[k] = self._add("passed", [Read(key, trips)], results, options, trips, written=False), 0
        self.wanted[id(scope), place] = wanted

    def _scan(self, scope: Scope, place: int, eqn: Any, trips: int) -> None:
        inner, steps = scope.inner[place]["jaxpr"], trips * eqn.params["length"]
        consts, carried = scan_operands(eqn.params)
        operands, outputs = self._keys(eqn.invars, scope), self._keys(inner.jaxpr.outvars, inner)
        start = self._time
        wanted: list[tuple[int, int] | None] = [None] * consts
        for k, var in enumerate(inner.jaxpr.invars[consts:], consts):
            key, own = inner.keys[var], specs(var.aval, self.layout)
            if k < consts + carried:
                reads = [Read(operands[k], trips), Read(outputs[k - consts], steps)]
                results = [(key, var.aval), (scope.keys[eqn.outvars[k - consts]], var.aval)]
                node = self._add("carry", reads, results, [Strategy((s, s), (s, s), 0.0) for s in own], trips)
                self.nodes[node].bytes[1] = 0  # the same memory
            else:
                options = [Strategy((((), *spec),), (spec,), 0.0) for spec in own]
                node = self._add("slice", [Read(operands[k], trips)], [(key, var.aval)], options, trips, written=False)
            wanted.append((node, 0))
        self.wanted[id(scope), place] = wanted
        self._walk(inner, steps)
        self._time += 1
        leaving: list[tuple[int, int] | None] = [(node[0], 1) for node in wanted[consts : consts + carried] if node]
        for key, var, out in zip(outputs[carried:], eqn.outvars[carried:], inner.jaxpr.outvars[carried:], strict=True):
            options = [Strategy((spec,), (((), *spec),), 0.0) for spec in specs(out.aval, self.layout)]
            node = self._add("stack", [Read(key, steps)], [(scope.keys[var], var.aval)], options, trips)
            self.nodes[node].start = start
            leaving.append((node, 0))
        self.leaving[id(inner)] = leaving
        for key in (*operands, *outputs):
            self._use(key, self._time)

    # Edges and memory.

    def _changes(self) -> Iterator[tuple[Key, tuple[int, int], tuple[int, int], int]]:
        """Yields for each read of a value: the value, the node that writes it and its number there, the node that
        reads it and its number there, and how often.
        """
        for reader, node in enumerate(self.nodes):
            wanted = set()
            for operand, (key, trips) in enumerate(node.reads):
                writer = self.producer.get(key)
                same = key, tuple(strategy.operands[operand] for strategy in node.strategies)
                if writer is not None and writer[0] != reader and same not in wanted:
                    wanted.add(same)
                    yield key, writer, (reader, operand), trips

    def _edges(self) -> dict[tuple[int, int], np.ndarray]:
        """Returns the cost matrix of each pair of nodes."""
        edges: dict[tuple[int, int], np.ndarray] = {}
        known: dict[Any, np.ndarray] = {}  # layers repeat
        for key, (writer, result), (reader, operand), trips in self._changes():
            have = tuple(strategy.results[result] for strategy in self.nodes[writer].strategies)
            want = tuple(strategy.operands[operand] for strategy in self.nodes[reader].strategies)
            aval = self.avals[key]
            same = aval.shape, str(aval.dtype), have, want
            if same not in known:
                known[same] = self._matrix(aval, have, want)
            pair, matrix = (writer, reader), known[same] * trips
            if writer > reader:
                pair, matrix = (reader, writer), matrix.T
            edges[pair] = edges[pair] + matrix if pair in edges else matrix
        return edges

    def _matrix(self, aval: Any, have: Sequence[Spec], want: Sequence[Spec]) -> np.ndarray:
        """Returns the cost of moving a value from each of some splits to each of others."""
        rows, columns = [*dict.fromkeys(have)], [*dict.fromkeys(want)]
        costs = np.array([[round(self._seconds(aval, h, w) / UNIT) for w in columns] for h in rows], np.int64)
        return costs[np.ix_([rows.index(h) for h in have], [columns.index(w) for w in want])]

    def _seconds(self, aval: Any, have: Spec, want: Spec) -> float:
        steps = (move for move in moves(self.layout, aval, have, want) if move.kind != TAKE)
        return sum(self._chip.launch_seconds + collective_seconds(self.layout, move.axes, move.bytes) for move in steps)

    def _usage(self, node: Node, strategy: Strategy) -> int:
        pairs = zip(node.bytes, strategy.results, strict=True)
        return sum(-(-size // self.layout.count(itertools.chain(*spec))) for size, spec in pairs)

    def _intervals(self) -> list[tuple[int, int]]:
        """Returns the half-open times in which the results of each node are in memory."""
        last, intervals = dict(self._last), []
        for node in reversed(self.nodes):
            stop = max((last[key] for key in node.results), default=node.start)
            if any(node.bytes):
                intervals.append((node.start, stop + 1))
                continue
            intervals.append((node.start, node.start))
            for read in node.reads:
                if read.key >= 0:
                    last[read.key] = max(last.get(read.key, 0), stop)
        return intervals[::-1]


def ties(arguments: Sequence[Any], results: Sequence[Any]) -> list[int | None]:
    """Matches results with arguments of their type, in order: gradients and new weights with weights.

    Args:
      arguments, results: types.

    Returns:
      For each result the number of an argument, each at most once; None for scalars and results without a match.
    """
    types = [(aval.shape, aval.dtype) for aval in arguments]
    free, after, matches = dict.fromkeys(range(len(types))), 0, list[int | None]()
    for aval in results:
        same = [k for k in free if aval.shape and types[k] == (aval.shape, aval.dtype)]
        match = next((k for k in same if k >= after), next(iter(same), None))
        matches.append(match)
        if match is not None:
            del free[match]
            after = match
    return matches


def _closed(jaxpr: Any) -> core.ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


def _written(jaxpr: core.Jaxpr) -> Iterator[int]:
    """Yields the ids of the equations whose results are written to memory."""
    flat = Inlined(jaxpr)
    fusion = Fusing(flat)
    for op in flat.ops:
        if op.equation is None or not is_fused(op.equation) or is_reduction(op.equation):
            fusion.write(op)
            yield id(op.equation)
        elif fusion.fuse(op):
            yield id(op.equation)
        if op.equation is not None and is_body(op.equation):
            for inner in inner_jaxprs(op.equation.params).values():
                yield from _written(_closed(inner).jaxpr)
