"""The costs of `graphrl.costs` compiled for the host by numba, for searches on CPUs.

`clocks` has the rules of the transfer models, `decode` decodes whole chromosomes.
"""
