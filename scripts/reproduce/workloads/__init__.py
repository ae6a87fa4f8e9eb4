"""GO's workloads: how the fourteen training steps of its table 2 become graphs, and what is asked of them."""
