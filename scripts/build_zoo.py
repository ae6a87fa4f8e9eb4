"""Traces the model zoo and writes its files, which `graphrl.graphs.datasets.zoo` ships.

Every architecture is traced in a separate process, with abstract values: no weights, little memory, and a failure
affects only that architecture. Existing files with the right batch sizes are kept. Takes about half an hour on one
core. In addition to graphrl it needs Keras, keras_hub (without its dependencies, as it asks for TensorFlow) and Flax:

  pip install keras flax regex tokenizers sentencepiece && pip install --no-deps keras-hub

  python scripts/build_zoo.py --only 'resnet*,bert_base' --out zoo
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"  # the schedules are those of XLA's CPU compiler

from reproduce.zoo import ARCHITECTURES, missing_files, trace

from graphrl.commands.parser import Parser
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.zoo import DATA, INDEX, write_index
from graphrl.progress import progress

INSTALL = "pip install keras flax regex tokenizers sentencepiece && pip install --no-deps keras-hub"


def main() -> None:
    """Traces all architectures and writes their files; exits with code 1 if an architecture failed."""
    args = _arguments()
    absent = [name for name in ("keras", "keras_hub", "flax") if importlib.util.find_spec(name) is None]
    if absent:
        sys.exit(f"build_zoo: {absent[0]} is not installed: {INSTALL}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        if args.here is not None:
            trace(ARCHITECTURES[args.here], args.out)
            return
        failed = _build(_chosen(args.only), args.out, args.limit)
        entries = write_index(args.out)
    except (GraphrlError, OSError) as error:
        sys.exit(f"build_zoo: {error}")
    except KeyboardInterrupt:
        sys.exit("build_zoo: interrupted: run the same command to resume")
    size = sum(path.stat().st_size for path in args.out.iterdir())
    architectures = len({entry.architecture for entry in entries})
    print(f"{args.out / INDEX}: {len(entries)} programs of {architectures} architectures, {size / 1e6:.1f} MB")
    if failed:
        sys.exit(f"build_zoo: {len(failed)} architectures failed: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DATA, metavar="FOLDER", help="default: the package's own data")
    parser.add_argument("--only", default="*", metavar="NAME,...", help="architectures; with * and ? as in file names")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds for each (default: 900)")
    parser.add_argument("--here", choices=sorted(ARCHITECTURES), help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(only: str) -> list[str]:
    chosen: dict[str, None] = {}
    for pattern in only.split(","):
        matching = [name for name in ARCHITECTURES if fnmatchcase(name, pattern)]
        if not matching:
            raise GraphrlError(f"--only: no architecture is {pattern!r}: there are {', '.join(ARCHITECTURES)}")
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def _build(names: list[str], out: Path, limit: float) -> list[str]:
    """Traces the architectures with missing files. Returns the names of those that failed."""
    missing = [name for name in names if missing_files(ARCHITECTURES[name], out)]
    failed = []
    with progress(len(missing), text="zoo") as show:
        for number, name in enumerate(missing, start=1):
            started = time.monotonic()
            reason = _trace(name, out, limit)
            if reason:
                failed.append(name)
                print(f"{name}: {reason}", flush=True)
            show(number, f"{name}: {reason or 'done'}, {time.monotonic() - started:.0f} s")
    return failed


def _trace(name: str, out: Path, limit: float) -> str:
    """Traces one architecture in a new process. Returns the reason of a failure, else ""."""
    command = [sys.executable, __file__, "--here", name, "--out", str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"failed: not done after {limit:g} s"
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"failed: {last}" if done.returncode else ""


if __name__ == "__main__":
    main()
