"""When ops and transfers start under each transfer model, compiled: what every simulation of the host walks its clocks
with. `graphrl.costs` has the rules.

Clocks are `[2, d]` seconds: when each device is free, and when its outgoing link is. A caller imports the numbers of
the transfer models from here too: modules of constants belong to the sources by which compiled code is kept.
"""

import numpy as np

from graphrl.compiled import inlined

FREE, RENDEZVOUS, LINK = range(3)
TRANSFERS = {"free": FREE, "rendezvous": RENDEZVOUS, "link": LINK}


@inlined
def run_op(clocks: np.ndarray, device: int, ready: float, seconds: float) -> float:
    """Runs an op whose inputs have arrived; when it starts."""
    start = max(clocks[0, device], ready)
    clocks[0, device] = start + seconds
    return start


@inlined
def run_transfer(transfer: int, clocks: np.ndarray, here: int, there: int, ready: float, seconds: float) -> float:
    """Runs a transfer of what is ready on a device to another; when it starts."""
    start = ready
    if transfer == RENDEZVOUS:
        start = max(ready, clocks[0, here], clocks[0, there])
        clocks[0, here] = clocks[0, there] = start + seconds
    elif transfer == LINK:
        start = max(ready, clocks[1, here])
        clocks[1, here] = start + seconds
    return start
