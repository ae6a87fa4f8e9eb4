"""Search without learning. Its methods by name stand in graphrl/methods.py."""
