"""Approximate dynamic programming over sets of ops ("beam"), for the peak memory of one device."""

from graphrl.solvers.orders.approximate_dp.solver import solve

__all__ = ["solve"]
