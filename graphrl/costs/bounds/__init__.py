"""Lower bounds of the objectives."""

from graphrl.costs.bounds.lower import lower_bound

__all__ = ["lower_bound"]
