"""Throughput of the search on this machine, against the same in numba; the caller may give further yardsticks.

- cases.py: what is measured, on which random graphs and chromosomes, the settings of a run, and its rows;
- programs.py: graphrl's programs of costing a population, made ready to be timed;
- yardstick/: the search in numba;
- timing.py: clocks, repeats; machine.py: its name, pinning, devices;
- measure.py: measures a case with graphrl and the yardsticks, whole BRKGA runs and compile time with a cache included;
- report.py: table, JSON lines and picture;
- envs.py, orders.py, maps.py, decisions.py: an environment's steps, the decoders of orders, memory maps, and GO's
  decisions: measured and shown.
"""
