"""The compiled yardstick: the same decoder, costs and BRKGA in numba, as an expert would write them for one CPU core.

- decode.py: a graph and its decoder's memory as flat arrays, the order that keys mean by a heap of ready nodes, its
  clocks and its peak memory;
- program.py: whole runs of BRKGA, and both made ready to be timed.
"""
