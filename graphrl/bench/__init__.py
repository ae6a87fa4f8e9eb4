"""Measures the throughput of environments, policies, memory maps and the search on this machine.

- cases.py: the cases, their random graphs and chromosomes, the settings of a run, and its table rows;
- timing.py: compiled programs, clocks, repeats, time limits, and benchmarks that measure a rate (`Bench`);
- machine.py: the machine's name, pinning to a core, devices;
- measure.py: measures a case of the search, including whole BRKGA runs and compile time with a cache;
- report.py: table, JSON lines and picture;
- envs.py, steps.py: environments with their instances and policies, and their steps a second;
- maps.py, policies.py: memory maps, and the decoders, decisions and updates of policies.
"""
