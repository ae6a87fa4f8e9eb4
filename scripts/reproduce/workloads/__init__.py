"""GO's workloads: the fourteen training steps of its table 2 in plain JAX, and how each becomes a graph."""
