"""JAX functions as graphs.

reader.py: `from_jax`; flatten.py: inlines calls; work.py: FLOPs of primitives, work of loops and branches.
"""
