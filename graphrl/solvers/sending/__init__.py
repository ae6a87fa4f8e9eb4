"""Plans as a placement and an order of ops alone: when tensors are sent follows by a rule, which walks apply."""
