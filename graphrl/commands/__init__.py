"""Commands of `graphrl`, one module each. `COMMANDS` of graphrl/cli.py lists them.

A command's module has `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)` and `run(args) -> exit code`. Shared code:
common.py (arguments and messages), parser.py (the argument parser), progress.py (progress on the terminal).
"""
