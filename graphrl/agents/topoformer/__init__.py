"""Topoformer: one network call per graph gives priorities of all ops, which a decoder converts to an order (NeurIPS
2022); ours also sees the memory of the order so far.
"""
