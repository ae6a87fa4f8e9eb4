"""Single changes of a placement for `max_load`, compiled, on the chain of `moves.py`: what each comes to, and those
that are kept one after the other.
"""

import numpy as np

from graphrl.compiled import entry
from graphrl.solvers.loads.moves import Chain, energy_of, largest_excess, largest_load, recount, shift

ROUNDING = 1e-12  # relative, of sums in another order


@entry
def climb(c: Chain, changes: np.ndarray, energies: np.ndarray) -> None:
    """Moves groups to other devices, `changes` `[k, 2]` int64, and keeps what lowers the energy of `moves.py` and makes
    neither the largest load nor the excess any larger. Without changes it costs the placement.

    `energies` `[b, d]`, if it has rows, is filled with what each group's move alone comes to then; inf where it cannot
    run. The costs are afterwards in `c.rank`.
    """
    recount(c)
    largest, excess = largest_load(c), largest_excess(c)
    energy = energy_of(c, largest, excess)
    for row in range(len(changes)):
        group, to = changes[row]
        was = c.device[group]
        if to == was or not np.isfinite(c.runtime[group, c.kinds[to]]):
            continue
        shift(c, group, to)
        then, over = largest_load(c), largest_excess(c)
        new = energy_of(c, then, over)
        if new < energy * (1 - ROUNDING) and then <= largest * (1 + ROUNDING) and over <= excess:
            energy, largest, excess = new, then, over
        else:
            shift(c, group, was)
    c.rank[0], c.rank[1] = excess, largest
    for group in range(len(energies)):
        was = c.device[group]
        for to in range(len(c.load)):
            energies[group, to] = np.inf
            if np.isfinite(c.runtime[group, c.kinds[to]]):
                shift(c, group, to)
                energies[group, to] = energy_of(c, largest_load(c), largest_excess(c))
                shift(c, group, was)
