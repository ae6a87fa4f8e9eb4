"""The errors that a user can cause; the command line prints them as one line, without a traceback."""


class GraphrlError(ValueError):
    """Base of every error that bad input causes: the message says what was wrong, where, and what would be right."""


class GraphError(GraphrlError):
    """A graph that breaks a rule of its format: a cycle, a dangling or duplicate name, a bad number, a bad file."""


class ArgumentError(GraphrlError, TypeError):
    """An argument or a result of a user's function that jax cannot trace; a TypeError, as jax's own."""


class PlanError(GraphrlError):
    """A plan that does not fit its graph, or whose stated costs are not what its decisions cost."""


class ProblemError(GraphrlError):
    """A problem, budget or option outside its range."""
