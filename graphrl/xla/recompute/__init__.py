"""Recomputation: programs that compute cheap values again instead of keeping them."""
