"""One file a command: `add_parser(subparsers)` and `run(args) -> exit code`; `common.py` is what they share."""
