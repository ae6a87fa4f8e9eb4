"""Comparing methods: graphs x methods x seeds at equal budget, a row a run, tables and pictures of the rows.

`runs.py` defines a run and its row, and makes one, `cluster.py` makes many; `comparison.py` keeps rows in a file and
makes the runs that it lacks. `table.py` is the arithmetic of the tables, `report.py` prints them,
`pictures.py` draws, and `maps.py` compares methods for memory maps. `graphs/datasets/sets.py` finds the graphs. The
command is `graphrl compare`.
"""
