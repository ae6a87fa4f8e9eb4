"""From a compiled module to a decision about it: search, prediction, and a cache of decisions."""
