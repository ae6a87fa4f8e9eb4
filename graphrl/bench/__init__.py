"""How fast the search is on this machine, against two yardsticks: a plain JAX version and a compiled one.

- graphs.py: the random graphs; chromosomes.py: the candidate solutions, in each method's layout;
- plain.py, plain_graph.py: what a JAX user would write first;
- compiled.py, reference.cpp: what an expert would write in C++; external.py: a binary that the user brings;
- programs.py: the jitted programs of graphrl and of `plain`, made ready to be timed;
- timing.py: clocks, repeats, pinning; measure.py: what is measured, and the rows; start.py: compile time with a cache;
- report.py, plot.py: table, JSON lines and picture.
"""
