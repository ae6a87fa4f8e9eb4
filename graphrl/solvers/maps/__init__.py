"""Searches for memory maps: the memory of every op's weights and outputs (`graphrl.costs.maps`)."""
