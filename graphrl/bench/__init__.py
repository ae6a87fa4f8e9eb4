"""How fast the search is on this machine, against the same in numba; further yardsticks are given by the caller.

- cases.py: what is measured, the settings of a run, and its rows; graphs.py: random graphs and candidate solutions;
- programs.py, searches.py: graphrl's programs (costing a population, a BRKGA run), made ready to be timed;
- yardstick/: the search in numba;
- timing.py: clocks, repeats; machine.py: its name, pinning, devices; start.py: compile time with a cache;
- measure.py: measures a case with graphrl and the yardsticks; report.py: table, JSON lines and picture;
- envs.py, orders.py: an environment's steps, and the decoders of orders: measured and shown.
"""
