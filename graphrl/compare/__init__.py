"""Comparing methods: graphs x methods x seeds at equal budget, a row a run, tables and pictures of the rows.

`runs.py` says what a run and its row are, `execute.py` makes one, `cluster.py` makes many, `store.py` keeps them in a
file, `comparison.py` puts these together; `table.py` and `estimates.py` are the arithmetic of the tables, `report.py`
prints them and `pictures.py` draws. `graphs/datasets/sets.py` finds the graphs. The command is `graphrl compare`.
"""
