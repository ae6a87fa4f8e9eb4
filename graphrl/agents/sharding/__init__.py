"""Sharding: a graph network scores the strategies of a reduced sharding problem, as a guide of `graphrl.sharding`."""
