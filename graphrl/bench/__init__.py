"""Throughput of the search on this machine: its decoder against the same in numba.

- cases.py: what is measured, on which random graphs and chromosomes, the settings of a run, and its rows;
- timing.py: programs made ready to be timed, clocks, repeats, and what has a rate (`Bench`);
- machine.py: the machine's name, pinning, devices;
- measure.py: measures a case, whole BRKGA runs and compile time with a cache included;
- report.py: table, JSON lines and picture;
- envs.py, maps.py, policies.py: an environment's steps, memory maps, and the decoders, decisions and updates of
  policies.
"""
