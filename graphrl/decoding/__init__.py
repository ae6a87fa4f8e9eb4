"""Orders from a policy: greedily, by sampling, by beam search, step by step, and how likely they were (Topoformer)."""
