"""`graphrl bench`, with yardsticks: the same search on the same graphs and chromosomes by other programs. Their results
are compared before they are timed, in turns.

yardsticks:
  plain       in JAX as one would write it first: vmapped scans with a masked argmax over all nodes
  compiled    in C++ as an expert would write it: a binary heap on packed keys, OpenMP threads a graph each.
              Needs a C++ compiler ($CXX, c++, g++ or clang++)
"""

import argparse
import sys

from reproduce.yardsticks import compiled, plain

from graphrl.bench.measure import Yardstick
from graphrl.commands import bench
from graphrl.errors import GraphrlError

YARDSTICKS: dict[str, Yardstick] = {"plain": plain.program, "compiled": compiled.program}
_EXAMPLES = """Everything takes some 15 minutes on one core, most of them for the plain version at 2,048 ops, which gets
fewer graphs there and shorter BRKGA runs.

examples:
  python scripts/bench.py
  python scripts/bench.py --threads 1 --sizes 512 --transfers free --yardsticks compiled"""


def main() -> None:
    """Measures; bad input is one line on standard error and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"{bench.HOW}\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    bench.add_options(parser)
    parser.add_argument(
        "--yardsticks", type=bench.names, default=tuple(YARDSTICKS), metavar="Y,...", help="default: plain,compiled"
    )
    args = parser.parse_args()
    for name in args.yardsticks:
        if name not in YARDSTICKS:
            parser.error(f"yardsticks has {name!r}: known are {', '.join(YARDSTICKS)}")
    try:
        sys.exit(bench.run(args, {name: YARDSTICKS[name] for name in args.yardsticks}))
    except KeyboardInterrupt:
        sys.exit("bench: interrupted before there was a figure")
    except (GraphrlError, OSError) as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
