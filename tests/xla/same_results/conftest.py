"""Where plans go, and that jax's cache on disk answers in XLA's place in no case."""

from xla_programs import plans

__all__ = ["plans"]
