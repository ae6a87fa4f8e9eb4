"""How long a plan takes under `rendezvous`, by the rule of `rule.py`: without making the order of transfers."""

import numpy as np

from graphrl.compiled import part
from graphrl.solvers.sending.plans import Placed


@part
def walk(plan: Placed, limit: float) -> float:
    """Seconds of makespan; infinite if above the limit. The devices' clocks are then the plan's."""
    ops, tensors, rows, clocks, pairs, devices = (
        plan.ops,
        plan.tensors,
        plan.rows,
        plan.clocks,
        plan.pairs,
        plan.devices,
    )
    clocks[:] = 0.0
    for p in range(len(pairs)):
        pairs[p].waiting, pairs[p].last = 0.0, -1
    makespan = 0.0
    for place in range(len(plan.order)):
        v = plan.order[place]
        here, start = ops[v].device, 0.0
        for e in range(ops[v].reads, ops[v + 1].reads):
            writer = tensors[rows[e]].producer
            there = ops[writer].device
            if there == here:
                continue
            pair = min(here, there) * devices + max(here, there)
            if pairs[pair].last <= ops[writer].place:
                now = max(clocks[here], clocks[there]) + pairs[pair].waiting
                clocks[here] = clocks[there] = now
                pairs[pair].waiting, pairs[pair].last = 0.0, place
        for e in range(ops[v].awaits, ops[v + 1].awaits):
            start = max(start, ops[rows[e]].end)
        end = max(start, clocks[here]) + ops[v].runtime
        ops[v].end = clocks[here] = end
        makespan = max(makespan, end)
        if end + ops[v].tail > limit:
            return np.inf
        _announce(plan, v)
    return makespan


@part
def _announce(plan: Placed, v: int) -> None:
    """What an op has written waits for being sent, to each device that reads it once."""
    ops, tensors, rows, marks, devices = plan.ops, plan.tensors, plan.rows, plan.marks, plan.devices
    here = ops[v].device
    for t in range(ops[v].writes, ops[v + 1].writes):
        if tensors[t].seconds <= 0.0:
            continue
        for device in range(devices):
            marks[device] = 0
        for e in range(tensors[t].users, tensors[t + 1].users):
            there = ops[rows[e]].device
            if there != here and marks[there] == 0:
                marks[there] = 1
                plan.pairs[min(here, there) * devices + max(here, there)].waiting += tensors[t].seconds
