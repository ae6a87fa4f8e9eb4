"""Shared parts of learning: the interface of learners, losses, gradient descent, devices. Pure functions."""
