"""Comparison of methods: every graph, method and seed is a run at equal budget; tables and pictures of the results.

`runs.py` defines a run and its row (the recorded result), and executes one run; `cluster.py` executes many.
`comparison.py` keeps rows in a file and executes the missing runs. `table.py` computes the tables, `report.py` prints
them, `pictures.py` draws, and `maps.py` compares methods for memory maps. `graphs/datasets/sets.py` finds the graphs.
The command is `graphrl compare`. `curves.py` compares training runs by their learning curves, for `graphrl plot`.
"""
