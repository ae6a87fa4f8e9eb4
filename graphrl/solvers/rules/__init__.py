"""One pass by a rule: no search."""
