"""Searches for memory maps: which memory every op's weights and outputs lie in (`graphrl.costs.maps`)."""
