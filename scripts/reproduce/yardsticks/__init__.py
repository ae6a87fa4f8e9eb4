"""What a JAX user would write first: vmapped scans with a masked argmax over all nodes, for `scripts/bench.py`."""
