"""JAX functions as graphs.

reader.py: `from_jax` and `trace`; flatten.py: inlines calls; loops.py: trips and bodies; flops.py: FLOPs of primitives.
"""
