"""The costs of `graphrl.costs` compiled by numba: what jitted programs call on CPUs.

- lowering.py: the custom call as a function of JAX, its blocks of solutions, and the setting that turns it off;
- arrays.py: operands and results, and the graph and decisions as a thread reads them;
- decode.py: orders and times; memory.py: peaks;
- clocks.py: the rules of the transfer models, which searches and the exact costs use too.
"""
