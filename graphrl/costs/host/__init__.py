"""The costs of `graphrl.costs` compiled for the host by numba: what searches on CPUs share.

`clocks` has the rules of the transfer models, `decode` whole chromosomes.
"""
