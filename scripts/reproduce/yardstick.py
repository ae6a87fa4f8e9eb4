"""The plain yardstick: decoding, costs and BRKGA as a JAX user would write them first.

One solution at a time under `vmap`: a scan that picks the ready node of the largest key by a masked argmax over all
nodes and scatters to its padded list of successors; a second scan that runs the order on clocks and counts memory;
a genetic algorithm on rows of genes. The semantics are exactly graphrl's (`graphrl.costs`, without aliases, reuses and
resident weights), so the results are equal. It is kept to be measured against; how graphrl does it instead is told in
`costs/device/decode.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.bench.cases import PARAMETERS, Work, padded
from graphrl.bench.measure import search_program
from graphrl.bench.programs import evaluation_program, spread
from graphrl.bench.timing import Program
from graphrl.bench.yardstick.decode import check_supported
from graphrl.costs.exact import key_bits
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters

NEVER = 1 << 20  # so many inputs never come

# Time grows with the square of the ops. Above so many ops there is one graph a thread, below not more than in cases
# beside the headline, and above the second figure BRKGA runs get shorter.
_BATCH_OPS, _SEARCH_OPS = 512, 64


class PlainGraph(NamedTuple):
    """Lists of successors and inputs, padded to the largest of any op: of one graph or, with a leading
    axis, a batch: n ops, t tensors, d devices, e uses.

    Nodes: op v is node v, and the transfer of tensor t to its s-th foreign device is node n + t * (d - 1) + s, as in
    `costs.device.lanes`; N = n + t * (d - 1) is no node. n is no op, t is no tensor.
    """

    levels: jax.Array  # [] float32, quantisation levels of keys
    runtime: jax.Array  # [n] float32, seconds
    transfer_seconds: jax.Array  # [t] float32
    workspace: jax.Array  # [n] float32, bytes
    tensor_bytes: jax.Array  # [t + 1] float32
    kept: jax.Array  # [t] bool
    producer: jax.Array  # [t] int32, op
    waits: jax.Array  # [n] int32, tensors read and control predecessors
    inputs: jax.Array  # [n, I] int32, tensors
    outputs: jax.Array  # [n, O] int32, tensors
    before: jax.Array  # [n, C] int32, control predecessors
    successors: jax.Array  # [N + 1, K] int32, nodes: readers on any device, control successors, transfers
    control: jax.Array  # [N + 1, K] bool, whether a successor waits for the node on whatever device it runs
    use_tensor: jax.Array  # [e] int32
    use_op: jax.Array  # [e] int32


class Solution(NamedTuple):
    """What one chromosome means."""

    placement: jax.Array  # [n + 1] int32; 0 for no op
    keys: jax.Array  # [N] float32, quantised
    device: jax.Array  # [N + 1] int32, where a node ends: of an op, or that a transfer goes to; -1 for no node
    exists: jax.Array  # [N + 1] bool
    uses: jax.Array  # [t + 1, d] int32, readers of each tensor on each device


def program(work: Work) -> Program:
    """The program to be timed on a case."""
    settings, problem, ops = work.settings, work.problem, work.case.num_ops
    graphs = work.graphs[: settings.num_graphs if ops <= _BATCH_OPS else settings.threads]
    mesh, batch = work.mesh(len(graphs)), plain_batch(graphs, problem)
    if work.case.search:
        shorter = (_SEARCH_OPS / max(_SEARCH_OPS, ops)) ** 2
        offspring, population = PARAMETERS.offspring, PARAMETERS.population
        generations = max(2, 1 + (int(settings.evaluations * shorter) - population) // offspring)

        def run(group: PlainGraph, keys: jax.Array, _: jax.Array) -> jax.Array:
            return jax.vmap(lambda graph, key: search(graph, key, problem, PARAMETERS, generations)[0])(group, keys)

        shared = spread(run, mesh)
        each = population + (generations - 1) * offspring
        return search_program(lambda g, keys: shared(g, keys, 0), batch, each, mesh, settings.seed)

    def one(graph: PlainGraph, genes: jax.Array) -> tuple[jax.Array, jax.Array]:
        return costs(graph, genes, problem, makespan=work.case.makespan, memory=work.case.memory)

    sizes = common_sizes(graphs)
    genes = np.stack([padded(x, g, sizes, problem.devices) for x, g in zip(work.chromosomes, graphs, strict=False)])
    return evaluation_program(jax.vmap(jax.vmap(one, (None, 0))), batch, genes, mesh)


def costs(
    graph: PlainGraph, genes: jax.Array, problem: Problem, *, makespan: bool = True, memory: bool = True
) -> tuple[jax.Array, jax.Array]:
    """Costs of one chromosome `[k]` (in the padded layout of `costs.device.decisions`) of one graph.

    Returns:
      Makespan `[]`, seconds, and peaks `[d]`, bytes; 0 where not asked for.
    """
    solution = _solution(graph, genes, problem.devices)
    return _simulate(graph, solution, _decode(graph, solution), problem, makespan, memory)


def _solution(graph: PlainGraph, genes: jax.Array, devices: int) -> Solution:
    n, t = graph.runtime.shape[0], graph.producer.shape[0]
    placement = jnp.argmax(genes[: devices * n].reshape(devices, n), 0).astype(jnp.int32)
    placement = jnp.append(placement, jnp.int32(0))
    op_keys = genes[devices * n : (devices + 1) * n]
    transfer_keys = genes[(devices + 1) * n :].reshape(devices, t)
    tensor = jnp.arange(t)[:, None]
    foreign = jnp.arange(devices - 1, dtype=jnp.int32)[None, :]
    target = foreign + (placement[graph.producer][:, None] <= foreign).astype(jnp.int32)
    uses = jnp.zeros((t + 1, devices), jnp.int32).at[graph.use_tensor, placement[graph.use_op]].add(1)
    keys = jnp.concatenate([op_keys, transfer_keys[target, tensor].reshape(-1)])
    return Solution(
        placement,
        jnp.floor(keys * graph.levels),
        jnp.concatenate([placement[:n], target.reshape(-1), jnp.full(1, -1, jnp.int32)]),
        jnp.concatenate([jnp.full(n, True), (uses[tensor, target] > 0).reshape(-1), jnp.full(1, False)]),
        uses,
    )


def _decode(graph: PlainGraph, solution: Solution) -> jax.Array:
    """The order: `[N]` int32 nodes, then N where no node is left."""
    n, nodes = graph.runtime.shape[0], solution.keys.shape[0]

    def step(waits: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        score = jnp.where(waits == 0, solution.keys, -1.0)
        best = jnp.argmax(score)
        node = jnp.where(score[best] >= 0, best, nodes)
        successors = graph.successors[node]
        here = graph.control[node] | (solution.device[successors] == solution.device[node])
        relaxed = jnp.where(successors < n, here, solution.exists[successors])
        waits = waits.at[node].set(NEVER, mode="drop")
        return waits.at[successors].add(-relaxed.astype(jnp.int32), mode="drop"), node.astype(jnp.int32)

    transfer_waits = jnp.where(solution.exists[n:nodes], 1, NEVER)
    return lax.scan(step, jnp.concatenate([graph.waits, transfer_waits]), length=nodes)[1]


class _State(NamedTuple):
    free: jax.Array  # [d] float32 seconds, end of what held each device
    link: jax.Array  # [d] float32 seconds, end of what held each outgoing link
    arrival: jax.Array  # [t + 1, d] float32 seconds, of each tensor on each device
    end: jax.Array  # [n + 1] float32 seconds, of each op
    uses: jax.Array  # [t + 1, d] int32, uses of each tensor on each device that are left
    live: jax.Array  # [d] float32 bytes
    peak: jax.Array  # [d] float32 bytes


def _simulate(
    graph: PlainGraph, solution: Solution, order: jax.Array, problem: Problem, makespan: bool, memory: bool
) -> tuple[jax.Array, jax.Array]:
    n, t, nodes, devices = graph.runtime.shape[0], graph.producer.shape[0], solution.keys.shape[0], problem.devices
    home = solution.placement[graph.producer]
    # the producer's device uses a tensor once for each transfer, and once more if it is kept
    used = (solution.uses[:t] > 0).astype(jnp.int32)
    sent = used.sum(1) - used[jnp.arange(t), home]
    uses = solution.uses.at[jnp.arange(t), home].add(sent + graph.kept.astype(jnp.int32))
    none = jnp.zeros(devices, jnp.float32)
    arrival, end = jnp.zeros((t + 1, devices), jnp.float32), jnp.zeros(n + 1, jnp.float32)
    start = _State(none, none, arrival, end, uses, none, none)

    def step(state: _State, node: jax.Array) -> tuple[_State, None]:
        op = jnp.where(node < n, node, n)
        tensor = jnp.where((node < n) | (node == nodes), t, (node - n) // max(1, devices - 1))
        if makespan:
            state = _run(graph, solution, problem, state, op, tensor, solution.device[node])
        if memory:
            state = _count(graph, solution, state, op, tensor, solution.device[node])
        return state, None

    final = lax.scan(step, start, order)[0]
    return final.end.max(), final.peak


def _run(
    graph: PlainGraph,
    solution: Solution,
    problem: Problem,
    state: _State,
    op: jax.Array,
    tensor: jax.Array,
    device: jax.Array,
) -> _State:
    """Runs op `op` (n for none) or the transfer of `tensor` (t for none) on the clocks."""
    n, t = graph.runtime.shape[0], graph.producer.shape[0]
    is_op, is_transfer = op < n, tensor < t
    source = solution.placement[graph.producer[tensor]]  # an index out of range is clamped: not used then
    ready = jnp.maximum(
        state.arrival[graph.inputs[op], device].max(initial=0.0), state.end[graph.before[op]].max(initial=0.0)
    )
    op_begin = jnp.maximum(ready, state.free[device])
    begin = state.arrival[tensor, source]
    if problem.transfer == "rendezvous":
        begin = jnp.maximum(begin, jnp.maximum(state.free[source], state.free[device]))
    if problem.transfer == "link":
        begin = jnp.maximum(begin, state.link[source])
    op_end, transfer_end = op_begin + graph.runtime[op], begin + graph.transfer_seconds[tensor]
    devices = state.free.shape[0]
    op_device = jnp.where(is_op, device, devices)
    to, sender = jnp.where(is_transfer, device, devices), jnp.where(is_transfer, source, devices)
    free, link = state.free.at[op_device].set(op_end, mode="drop"), state.link
    if problem.transfer == "rendezvous":
        free = free.at[to].set(transfer_end, mode="drop").at[sender].set(transfer_end, mode="drop")
    if problem.transfer == "link":
        link = link.at[sender].set(transfer_end, mode="drop")
    arrival = state.arrival.at[graph.outputs[op], op_device].set(op_end, mode="drop")
    arrival = arrival.at[tensor, to].set(transfer_end, mode="drop")
    end = state.end.at[jnp.where(is_op, op, n + 1)].set(op_end, mode="drop")
    return state._replace(free=free, link=link, arrival=arrival, end=end)


def _count(
    graph: PlainGraph, solution: Solution, state: _State, op: jax.Array, tensor: jax.Array, device: jax.Array
) -> _State:
    """Counts the memory of op `op` (n for none) or of the transfer of `tensor` (t for none)."""
    n, t, devices = graph.runtime.shape[0], graph.producer.shape[0], state.live.shape[0]
    is_op, is_transfer = op < n, tensor < t
    inputs, outputs = (jnp.where(is_op, table[op], t) for table in (graph.inputs, graph.outputs))
    allocated = graph.tensor_bytes[outputs].sum() + graph.tensor_bytes[tensor]  # no tensor has 0 bytes
    workspace = jnp.where(is_op, graph.workspace[op], 0.0)
    here = jnp.where(is_op | is_transfer, device, devices)
    live = state.live.at[here].add(allocated, mode="drop")
    peak = state.peak.at[here].max(live[device] + workspace, mode="drop")
    # an op releases its inputs where it runs, a transfer its tensor where it comes from
    source = jnp.where(is_op, device, solution.placement[graph.producer[tensor]])
    released = jnp.append(inputs, tensor)
    uses = state.uses.at[released, source].add(-1, mode="drop")
    done = jnp.append(released, outputs)
    freed = jnp.where(uses[done, source] == 0, graph.tensor_bytes[done], 0.0).sum()
    return state._replace(live=live.at[source].add(-freed), peak=peak, uses=uses)


def search(
    graph: PlainGraph, key: jax.Array, problem: Problem, parameters: Parameters, generations: int
) -> tuple[jax.Array, jax.Array]:
    """BRKGA on one graph: population + (generations - 1) * offspring evaluations.

    Returns:
      The best chromosome `[k]` and its objective `[]`, bytes or seconds.
    """
    n, t, devices = graph.runtime.shape[0], graph.producer.shape[0], problem.devices
    k = (devices + 1) * n + devices * t
    by_makespan = problem.objective == "makespan"

    def fitness(population: jax.Array) -> jax.Array:
        makespan, peak = jax.vmap(
            lambda genes: costs(graph, genes, problem, makespan=by_makespan, memory=not by_makespan)
        )(population)
        return makespan if by_makespan else peak.max(1)

    def generation(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        order = jnp.argsort(state[1])
        population, values = state[0][order], state[1][order]
        elites = population[: parameters.elites]
        offspring = _offspring(population, key, parameters)
        values = jnp.concatenate([values[: parameters.elites], fitness(offspring)])
        return (jnp.concatenate([elites, offspring]), values), None

    first, rest = jax.random.split(key)
    population = jax.random.uniform(first, (parameters.population, k))
    start = (population, fitness(population))
    (population, values), _ = lax.scan(generation, start, jax.random.split(rest, generations - 1))
    best = jnp.argmin(values)
    return population[best], values[best]


def _offspring(population: jax.Array, key: jax.Array, parameters: Parameters) -> jax.Array:
    """Children and mutants `[offspring, k]` of a sorted population `[p, k]`."""
    p, k = population.shape
    children = parameters.offspring - parameters.mutants
    elite_key, other_key, coin_key, mutant_key = jax.random.split(key, 4)
    elite = population[jax.random.randint(elite_key, (children,), 0, parameters.elites)]
    other = population[jax.random.randint(other_key, (children,), parameters.elites, p)]
    from_elite = jax.random.bernoulli(coin_key, parameters.elite_bias, (children, k))
    mutants = jax.random.uniform(mutant_key, (parameters.mutants, k))
    return jnp.concatenate([jnp.where(from_elite, elite, other), mutants])


def plain_batch(graphs: Sequence[ComputationGraph], problem: Problem) -> PlainGraph:
    """The graphs, padded to common sizes and stacked.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    check_supported(graphs, problem)
    sizes = common_sizes(graphs)
    each = [_ragged(graph, sizes, problem) for graph in graphs]
    widths = {name: max(len(row) for lists in each for row in lists[name]) for name in each[0]}
    padded = [_pad(graph, lists, widths, sizes, problem) for graph, lists in zip(graphs, each, strict=True)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)


def _ragged(graph: ComputationGraph, sizes: Sizes, problem: Problem) -> dict[str, list[list[int]]]:
    """Lists by op or node; control successors as -1 - op."""
    a = graph.arrays
    n, t, foreign = sizes.ops, sizes.tensors, problem.devices - 1
    inputs: list[list[int]] = [[] for _ in range(n)]
    outputs: list[list[int]] = [[] for _ in range(n)]
    before: list[list[int]] = [[] for _ in range(n)]
    successors: list[list[int]] = [[] for _ in range(n + t * foreign + 1)]
    for tensor, op in enumerate(a.producer.tolist()):
        outputs[op].append(tensor)
        successors[op] += range(n + tensor * foreign, n + (tensor + 1) * foreign)
    for tensor, op in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True):
        inputs[op].append(tensor)
        for node in (a.producer[tensor], *range(n + tensor * foreign, n + (tensor + 1) * foreign)):
            successors[node].append(op)
    for source, target in zip(a.control_source.tolist(), a.control_target.tolist(), strict=True):
        before[target].append(source)
        successors[source].append(-1 - target)
    return {"inputs": inputs, "outputs": outputs, "before": before, "successors": successors}


def _pad(
    graph: ComputationGraph,
    lists: dict[str, list[list[int]]],
    widths: dict[str, int],
    sizes: Sizes,
    problem: Problem,
) -> PlainGraph:
    a = graph.arrays
    n, t = sizes.ops, sizes.tensors
    seconds = [problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()]
    waits = np.bincount(a.use_op, minlength=a.num_ops) + np.bincount(a.control_target, minlength=a.num_ops)
    bits = key_bits(a.num_ops, a.num_tensors, problem.devices)
    successors = _table(lists["successors"], widths["successors"], len(lists["successors"]) - 1)
    return PlainGraph(
        levels=_scalar(2.0**bits),
        runtime=_column(a.runtime, n, 0, np.float32),
        transfer_seconds=_column(np.array(seconds), t, 0, np.float32),
        workspace=_column(a.workspace_bytes, n, 0, np.float32),
        tensor_bytes=_column(a.tensor_bytes, t + 1, 0, np.float32),
        kept=_column(a.kept, t, 0, np.bool_),
        producer=_column(a.producer, t, 0, np.int32),
        waits=_column(waits, n, NEVER, np.int32),
        inputs=_table(lists["inputs"], widths["inputs"], t),
        outputs=_table(lists["outputs"], widths["outputs"], t),
        before=_table(lists["before"], widths["before"], n),
        successors=np.where(successors < 0, -1 - successors, successors),
        control=successors < 0,
        use_tensor=_column(a.use_tensor, sizes.uses, t, np.int32),
        use_op=_column(a.use_op, sizes.uses, n, np.int32),
    )


def _scalar(value: float) -> Any:
    return np.array(value, np.float32)


def _column(values: np.ndarray, size: int, padding: float, dtype: type) -> Any:
    out: np.ndarray = np.full(size, padding, dtype)
    out[: len(values)] = values
    return out


def _table(lists: list[list[int]], width: int, padding: int) -> Any:
    return np.array([row + [padding] * (width - len(row)) for row in lists], np.int32).reshape(len(lists), width)
