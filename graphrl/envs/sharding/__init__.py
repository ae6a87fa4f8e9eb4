"""`Sharding-v0`: choose a strategy for every op of a model, so that costs are least and memory fits."""
