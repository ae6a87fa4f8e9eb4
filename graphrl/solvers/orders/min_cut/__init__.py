"""Orders of one device that go through the states of minimum cuts (method "min-cut")."""
