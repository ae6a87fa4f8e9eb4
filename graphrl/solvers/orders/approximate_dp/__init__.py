"""Approximate dynamic programming over sets of ops (method "approximate-dp"), for the peak memory of one device."""
