"""Lower bounds of the three objectives: peak memory, makespan and largest load."""

from graphrl.costs.bounds.lower import lower_bound

__all__ = ["lower_bound"]
