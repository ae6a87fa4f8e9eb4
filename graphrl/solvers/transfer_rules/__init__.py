"""Plans as a placement and an order of ops alone: a rule determines when tensors are sent, and walks apply it."""
