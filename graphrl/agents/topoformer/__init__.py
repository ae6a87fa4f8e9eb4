"""Topoformer: priorities of all ops from one call of a network, and orders from them (NeurIPS 2022)."""
