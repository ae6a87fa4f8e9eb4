"""Graph networks: Flax Linen and jraph inside, `Network(init, apply)` outside.

Letters used in shapes, as in graphs/padding.py: n ops and e edges of one padded graph, d devices; w is a width. All
functions take one graph: `jax.vmap` is the caller's.
"""
