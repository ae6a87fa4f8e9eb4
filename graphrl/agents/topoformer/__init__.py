"""Topoformer: one network call gives priorities of all ops, which determine their order (NeurIPS 2022)."""
