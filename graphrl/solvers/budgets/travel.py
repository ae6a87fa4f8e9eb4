"""Values that travel to the host and back, and who waits for them. Compiled.

What is moved to the host travels one value after another, out and back each on a way of its own. It leaves once it is
computed, and its memory is free after the next heavy value that is computed once it is there; in a loop, at the end of
the trip. It comes back from the begin of the first segment that reads it, which is when its memory is taken; who reads
it before it is there waits.
"""

import numpy as np

from graphrl.compiled import part
from graphrl.solvers.budgets.level import ARGUMENT, Level
from graphrl.solvers.budgets.work import KEPT, MOVED, Work


@part
def send(level: Level, work: Work, segment: np.ndarray, again: np.ndarray) -> None:
    """When what is moved is gone from the device; what cannot go is kept. Waiting by the last that can wait counts."""
    n, clock, link, passed = len(level.bytes), 0.0, 0.0, 0.0
    heavy, head, tail = -1, 0, 0
    for v in range(n):
        work.sent[v] = n
        if level.needed[v] and (v == 0 or level.op[v] != level.op[v - 1]):
            clock += level.seconds[v]
        if level.place[v] != ARGUMENT and again[segment[level.place[v]]] and level.heavy[v] and level.needed[v]:
            heavy, passed = v, clock
            while (
                head < tail
                and work.arrived[work.stack[head]] <= clock
                and level.place[work.stack[head]] < level.place[v]
            ):
                work.sent[work.stack[head]] = v
                head += 1
        if work.stored[v] == MOVED:
            link = max(link, clock) + level.bytes[v] / level.link
            work.arrived[v] = link
            work.stack[tail] = v
            tail += 1
    if level.trips > 0:
        passed = clock
    for k in range(head, tail):
        v = work.stack[k]
        if level.trips == 0 and (heavy < 0 or level.place[v] >= level.place[heavy]):
            work.stored[v] = KEPT
            continue
        work.sent[v] = n if level.trips > 0 else heavy
        work.prices[4] += max(0.0, work.arrived[v] - passed)
        passed = max(passed, work.arrived[v])


@part
def fetch(level: Level, work: Work, steps: int) -> None:
    """Adds the seconds for which steps of the backward pass wait for what comes back."""
    work.coming[: steps + 1] = 0.0
    for v in range(len(level.bytes)):
        if work.stored[v] == MOVED:
            work.coming[work.first[v]] += level.bytes[v]
            work.since[work.first[v]] = work.loaded[v]
    clock = link = 0.0
    for step in range(steps):
        work.at[step] = clock
        if work.coming[step] > 0.0:
            link = max(link, work.at[work.since[step]]) + work.coming[step] / level.link
            work.prices[4] += max(0.0, link - clock)
            clock = max(clock, link)
        clock += work.took[step]
