"""A list rule for `max_load`: group after group goes where the largest load stays least."""

import numpy as np

from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.loads.blocks import Blocks
from graphrl.solvers.loads.groups import Groups, placed_plan
from graphrl.solvers.solver import solver


@solver(
    "greedy-load",
    "max_load: each block, in topological order, where the largest load stays least",
    objectives=("max_load",),
)
def solve(task: Task) -> Plan:
    """One plan, whatever the budget. Blocks (`blocks.py`) run in the order of their levels; a block goes to a device
    that has room for it, of those to the one whose largest load it raises least, then to the one of least load.
    """
    blocks = Blocks.of_graph(task.graph, task.problem)
    loads = _Loads(blocks.groups)
    for block in blocks.orders()[0].tolist():
        loads.place(block, min(loads.devices(block), key=lambda device: loads.rank(block, device)))
    return task.answer(placed_plan(task, loads.device[blocks.groups.of], evaluations=1))


class _Loads:
    """Loads of the blocks that are placed.

    Attributes:
      device: `[b]`, -1 where a block has none yet.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups, self._nets = groups, groups.incidence()
        self.device = np.full(len(groups.weight), -1)
        self._load, self._held = [0.0] * len(groups.kinds), [0.0] * len(groups.kinds)

    def devices(self, block: int) -> list[int]:
        """That can run a block."""
        return [device for device in range(len(self._load)) if self._groups.can_run(block, device)]

    def rank(self, block: int, device: int) -> tuple[float, float, float]:
        """Excess, largest load and the device's load if a block went there."""
        added = self._added(block, device)
        largest = max(load + added.get(other, 0.0) for other, load in enumerate(self._load))
        held = self._held[device] + self._groups.weight[block]
        excess = max(0.0, held - self._groups.limit) if device < self._groups.accelerators else 0.0
        return excess, largest, self._load[device] + added[device]

    def place(self, block: int, device: int) -> None:
        """Puts a block on a device."""
        for other, seconds in self._added(block, device).items():
            self._load[other] += seconds
        self._held[device] += self._groups.weight[block]
        self.device[block] = device

    def _added(self, block: int, device: int) -> dict[int, float]:
        """Seconds that a block adds to devices: its own, and those of nets that are then on more of them."""
        groups = self._groups
        added = {device: float(groups.runtime[block, groups.kinds[device]])}
        for net in self._nets[block]:
            before = {int(self.device[other]) for other in groups.ends[net]} - {-1}
            if not before or device in before:
                continue
            for other in {device} | (before if len(before) == 1 else set()):
                if other < groups.accelerators:
                    added[other] = added.get(other, 0.0) + float(groups.seconds[net])
        return added
