"""Start times of ops and transfers under each transfer model, compiled for simulations on the host.

`graphrl.costs` has the rules.

Clocks are `[2, d]` seconds: the time when each device is free, and the time when its outgoing link is. A caller imports
the numbers of the transfer models from here too: the cache key of compiled code includes the modules of its constants.
"""

import numpy as np

from graphrl.compiled import inlined

FREE, RENDEZVOUS, LINK = range(3)
TRANSFERS = {"free": FREE, "rendezvous": RENDEZVOUS, "link": LINK}


@inlined
def run_op(clocks: np.ndarray, device: int, ready: float, seconds: float) -> float:
    """Runs an op whose inputs arrive at `ready`; returns its start."""
    start = max(clocks[0, device], ready)
    clocks[0, device] = start + seconds
    return start


@inlined
def run_transfer(transfer: int, clocks: np.ndarray, here: int, there: int, ready: float, seconds: float) -> float:
    """Runs a transfer, of a tensor that is ready at `ready`, from one device to another; returns its start."""
    start = ready
    if transfer == RENDEZVOUS:
        start = max(ready, clocks[0, here], clocks[0, there])
        clocks[0, here] = clocks[0, there] = start + seconds
    elif transfer == LINK:
        start = max(ready, clocks[1, here])
        clocks[1, here] = start + seconds
    return start
