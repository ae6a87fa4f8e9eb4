"""How long a plan takes, by the rule of `rule.py`: without making the order of transfers."""

import numpy as np

from graphrl.compiled import integer, part
from graphrl.compiled.heap import pop, push
from graphrl.compiled.records import FREE, RENDEZVOUS
from graphrl.solvers.sending.plans import Placed


@part
def walk(plan: Placed, limit: float) -> float:
    """Seconds of makespan; infinite if above the limit. The devices' clocks are then the plan's."""
    ops, rows, clocks = plan.ops, plan.rows, plan.clocks
    clocks[:] = plan.links[:] = 0.0
    plan.walks[0] += 1
    for p in range(len(plan.pairs)):
        plan.pairs[p].waiting, plan.pairs[p].last = 0.0, -1
    makespan = 0.0
    for place in range(len(plan.order)):
        v = plan.order[place]
        here = ops[v].device
        start = _met(plan, v) if plan.transfer == RENDEZVOUS else _arrival(plan, v)
        for e in range(ops[v].awaits, ops[v + 1].awaits):
            start = max(start, ops[rows[e]].end)
        end = max(start, clocks[here]) + ops[v].runtime
        ops[v].end = clocks[here] = end
        makespan = max(makespan, end)
        if end + ops[v].tail > limit:
            return np.inf
        if plan.transfer == RENDEZVOUS:
            _announce(plan, v)
    return makespan


@part
def _met(plan: Placed, v: int) -> float:
    """The clock of an op's device after it and those whose tensors the op cannot do without have waited for one
    another, with all that they have for one another by then.
    """
    ops, tensors, rows, clocks, pairs = plan.ops, plan.tensors, plan.rows, plan.clocks, plan.pairs
    here, place = ops[v].device, ops[v].place
    for e in range(ops[v].reads, ops[v + 1].reads):
        writer = tensors[rows[e]].producer
        there = ops[writer].device
        if there == here:
            continue
        pair = min(here, there) * plan.devices + max(here, there)
        if pairs[pair].last <= ops[writer].place:
            now = max(clocks[here], clocks[there]) + pairs[pair].waiting
            clocks[here] = clocks[there] = now
            pairs[pair].waiting, pairs[pair].last = 0.0, place
    return clocks[here]


@part
def _arrival(plan: Placed, v: int) -> float:
    """When the last of an op's inputs from elsewhere has arrived, seconds. What it is the first to wait for is sent
    now: under `link` behind what its writer's device sent before, what is written first goes first.
    """
    ops, tensors, rows, links, copies = plan.ops, plan.tensors, plan.rows, plan.links, plan.copies
    here, arrival, missing = ops[v].device, 0.0, integer(0)
    for e in range(ops[v].reads, ops[v + 1].reads):
        t = integer(rows[e])
        writer = tensors[t].producer
        if ops[writer].device == here:
            continue
        if plan.transfer == FREE:
            arrival = max(arrival, ops[writer].end + tensors[t].seconds)
        elif copies[t * plan.devices + here].walk == plan.walks[0]:
            arrival = max(arrival, copies[t * plan.devices + here].arrival)
        else:
            plan.keys[t] = ops[writer].place
            missing = push(plan.missing, plan.keys, missing, t)
    while missing > 0:
        t = plan.missing[0]
        missing = pop(plan.missing, plan.keys, missing)
        writer = tensors[t].producer
        there, copy = ops[writer].device, t * plan.devices + here
        links[there] = max(links[there], ops[writer].end) + tensors[t].seconds
        copies[copy].arrival, copies[copy].walk = links[there], plan.walks[0]
        arrival = max(arrival, links[there])
    return arrival


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
