"""The custom call that costs a population: blocks of lanes, which XLA's threads share."""

from typing import Any

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    array,
    count_outer,
    custom_call,
    data,
    operand,
    own_address,
    result,
    run_items,
    size,
)
from graphrl.costs.host.arrays import (
    CONTROL_TARGET,
    CONTROLS,
    F32,
    GRAPH,
    HEADER,
    I32,
    I64,
    LANES,
    MAKESPAN,
    OPS,
    OUTER,
    PEAK,
    PLACEMENT,
    PRODUCER,
    RUNTIME,
    SCALE,
    SETTINGS,
    TENSORS,
    USE_OP,
    USES,
    WEIGHT,
    WORKING,
    decisions_at,
    graph_at,
    read_decisions,
    read_graph,
    row,
    write_orders,
)
from graphrl.costs.host.decode import simulate

FEW = 2000  # ops times lanes that one thread computes alone: scheduling another takes as long


@custom_call("graphrl_costs")
def costs_of_lanes(pointer: Any) -> Any:
    """Costs of all lanes of a population on a batch of graphs: the operands and results of `arrays.py`."""
    return run_items(pointer, own_address(), _plan, _cost_block)


@inlined
def _plan(call: int) -> tuple[int, int, int]:
    """Number of blocks, largest number of threads, and bytes that a thread needs for a graph of the padded sizes."""
    n, t = size(operand(call, RUNTIME), -1), size(operand(call, PRODUCER), -1)
    e, f = size(operand(call, USE_OP), -1), size(operand(call, CONTROL_TARGET), -1)
    end = graph_at(call, decisions_at(call, integer(0)).end, n, t, e, f, integer(1)).end
    like = result(call, MAKESPAN)
    few = count_outer(like, 0) * size(operand(call, PLACEMENT), -3) < FEW
    return _count_blocks(call) * count_outer(like, 2), integer(1 if few else MANY), end


@inlined
def _block(call: int) -> int:
    """Lanes of a block: fewer than `LANES` where else there would be too few blocks for several threads."""
    like, block = result(call, MAKESPAN), integer(LANES)
    lanes, outer = size(like, -2) * size(like, -1), count_outer(like, 2)
    while block > 1 and outer * ((lanes + block - 1) // block) < 8:
        block //= 2
    return block


@inlined
def _count_blocks(call: int) -> int:
    like, block = result(call, MAKESPAN), _block(call)
    return (size(like, -2) * size(like, -1) + block - 1) // block


@part
def _cost_block(call: int, block: int, memory: int) -> None:
    """Costs the lanes of a block."""
    like, width = result(call, MAKESPAN), _block(call)
    graphs, population = size(like, -2), size(like, -1)
    lanes, blocks = graphs * population, _count_blocks(call)
    outer, first = block // blocks, block % blocks * width
    count = min(width, lanes - first)
    decisions, words = decisions_at(call, memory), array(memory, HEADER, I64)
    read_decisions(call, decisions, outer, first, count)
    makespan = array(data(like) + 4 * outer * lanes, lanes, F32)
    peak = array(data(result(call, PEAK)), size(result(call, PEAK), -3) * lanes * (outer + 1), F32)
    settings = array(data(operand(call, SETTINGS)), integer(6), I32)
    for lane in range(count):
        graph = (first + lane) // population
        if words[OUTER] != outer or words[GRAPH] != graph:
            read_graph(call, decisions.end, words, outer, graph)
        g = graph_at(call, decisions.end, words[OPS], words[TENSORS], words[USES], words[CONTROLS], words[WORKING])
        weight = row(call, WEIGHT, outer, graph, 4) if settings[4] != 0 else integer(0)
        latest = simulate(g, decisions, lane, settings[2] != 0, weight)
        makespan[first + lane] = latest if settings[2] != 0 else F32(0)
        for device in range(g.devices):
            at = (outer * g.devices + device) * lanes + first + lane
            peak[at] = F32(g.peak[device] / SCALE) if g.memory else F32(0)
    if settings[5] != 0:
        write_orders(call, decisions, outer, first, count)
