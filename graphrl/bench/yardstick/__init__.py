"""The compiled yardstick: the same decoder, costs and BRKGA in numba, as an expert would write them for one CPU core.

- graph.py: a graph and its decoder's memory as flat arrays;
- heap.py, decode.py: the order that keys mean by a heap of ready nodes, its clocks and its peak memory;
- brkga.py: whole runs; program.py: both made ready to be timed.
"""
