"""`graphrl bench` beside one more yardstick: the same search in JAX as one would write it first, vmapped scans with a
masked argmax over all nodes.
"""

import sys

from reproduce import yardstick

from graphrl.commands import bench
from graphrl.commands.parser import Parser
from graphrl.errors import GraphrlError

_EXAMPLES = """Everything takes some 20 minutes on one core, most of them for the plain version at 2,048 ops, which gets
fewer graphs and shorter BRKGA runs.

examples:
  python scripts/bench.py
  python scripts/bench.py --threads 1 --sizes 512 --transfers free"""


def main() -> None:
    """Measures; bad input is one line on standard error and exit code 1."""
    parser = Parser(
        description=__doc__,
        epilog=f"{bench.HOW}\n{_EXAMPLES}",
    )
    bench.add_options(parser)
    try:
        sys.exit(bench.run(parser.parse_args(), {"plain": yardstick.program}))
    except KeyboardInterrupt:
        sys.exit("bench: interrupted before there was a figure")
    except (GraphrlError, OSError) as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
