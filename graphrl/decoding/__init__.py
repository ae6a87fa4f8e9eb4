"""Orders from a policy: greedy, sampled, by beam search or step by step, and their log-probabilities (Topoformer)."""
