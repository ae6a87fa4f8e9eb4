"""GO: placement, order and fusion of a whole graph in one shot (Zhou et al., "Transferable Graph Optimizers", 2020)."""
