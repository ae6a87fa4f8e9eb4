"""Measures the throughput of the search on this machine, on CPUs also in pure JAX.

- cases.py: the cases, their random graphs and chromosomes, the settings of a run, and its table rows;
- timing.py: compiled programs, clocks, repeats, and benchmarks that measure a rate (`Bench`);
- machine.py: the machine's name, pinning to a core, devices;
- measure.py: measures a case, including whole BRKGA runs and compile time with a cache;
- report.py: table, JSON lines and picture;
- envs.py, maps.py, policies.py: an environment's steps, memory maps, and the decoders, decisions and updates of
  policies.
"""
