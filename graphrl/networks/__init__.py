"""Graph networks, written in Flax Linen and jraph, and used through pure functions, `Network(init, apply)`.

Letters in shapes, as in graphs/padding.py: n ops and e edges of one padded graph, d devices, width w. All functions
take one graph; callers apply `jax.vmap` for batches.
"""
