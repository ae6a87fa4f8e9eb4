"""Other implementations of the search, which `scripts/bench.py` measures graphrl against.

- plain.py, plain_graph.py: what a JAX user would write first: vmapped scans with a masked argmax over all nodes;
- compiled.py, reference.cpp: what an expert would write in C++: a binary heap on packed keys, a thread a graph.

Each has a `program(work)` for `graphrl.bench.measure.measure`.
"""
