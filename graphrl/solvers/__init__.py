"""Search without learning. graphrl/methods.py lists its methods by name."""
