"""Exact costs of a plan, in int64 bytes and float64 seconds: the host twin of the device code.

Every number that leaves the library comes from `evaluate`, which takes O((n + e) log n); its loops over the order are
compiled.
"""

from graphrl.costs.exact.evaluate import Costs, evaluate, prepare, run_times
from graphrl.costs.exact.routes import Routes, decode, key_bits, quantise

__all__ = ["Costs", "Routes", "decode", "evaluate", "key_bits", "prepare", "quantise", "run_times"]
