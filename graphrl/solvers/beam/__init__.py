"""Approximate dynamic programming over sets of ops ("beam"), for the peak memory of one device."""

from graphrl.solvers.beam.solver import solve

__all__ = ["solve"]
