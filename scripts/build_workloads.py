"""Traces GO's workloads and writes their files, which `graphrl.graphs.datasets.workloads.go` ships.

The fourteen training steps of table 2 in plain JAX (`scripts/reproduce/models`), traced with abstract values: nothing
of full size is computed. Existing files are kept. A few minutes on one core.

  python scripts/build_workloads.py --only 'rnnlm-*,gnmt-8' --out workloads
"""

import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from reproduce.workloads import ARCHITECTURES, write

from graphrl.commands.parser import Parser
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.workloads.go import DATA, KIND, LEVEL
from graphrl.graphs.datasets.zoo.storage import file_name
from graphrl.progress import progress


def main() -> None:
    """Builds missing files."""
    parser = Parser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DATA, metavar="FOLDER", help="default: the package's own data")
    parser.add_argument("--only", default="*", metavar="NAME,...", help="architectures; with * and ? as in file names")
    args = parser.parse_args()
    patterns = args.only.split(",")
    names = [name for name in ARCHITECTURES if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        sys.exit(f"build_workloads: --only: no architecture is {args.only!r}: there are {', '.join(ARCHITECTURES)}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        missing = [name for name in names if not (args.out / file_name(name, KIND, LEVEL)).exists()]
        with progress(len(missing), text="workloads") as show:
            for number, name in enumerate(missing, start=1):
                path = write(name, args.out)
                show(number, f"{name}: {path.stat().st_size:,} bytes")
    except (GraphrlError, OSError) as error:
        sys.exit(f"build_workloads: {error}")
    except KeyboardInterrupt:
        sys.exit("build_workloads: interrupted: run the same command to resume")


if __name__ == "__main__":
    main()
