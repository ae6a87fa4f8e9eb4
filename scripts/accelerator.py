"""Speed and accuracy of graphrl on this machine's accelerator, in minutes: docs/results/accelerator.md.

It needs jax with the accelerator's plugin, flax, optax, numba and scipy. Other missing packages, such as msgspec (for
training), jraph (for two environments and three agents) or flashbax (for EGRL), can be wheels in the folder --wheels.
Without them, rows that need a package name it. graphrl itself need not be installed: this checkout's is taken.

Every part runs in its own process, one at a time, which ends at its limit. Later parts share the time that is left
over. The page is rewritten after each figure. With less than 240 s for everything, sizes are small and XLA on CPUs
compiles with little effort: this only tests whether everything works.
"""

import argparse
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SECTIONS = {
    "costs": "device twins against the exact costs: the greatest difference",
    "rollouts": "episodes a second of the four environments, 64 to 16,384 in parallel",
    "search": "decoded schedules a second, and BRKGA with 5,000 evaluations on 64 graphs in parallel",
    "training": "a minute of each agent, with its learning curve; of one: training:go",
    "cpu": "the same rollouts on this machine's CPU",
}
AGENTS = "regal", "topoformer", "go", "egrl"
EXAMPLES = """examples:
  python scripts/accelerator.py
  python scripts/accelerator.py --wheels wheels --sections costs,rollouts --seconds 240
  python scripts/accelerator.py --platform cpu --seconds 60 --output out/accelerator.md
  python scripts/accelerator.py --compile-only --target h100
      compile every program for a GPU that is not there: memory, kernels and roofline seconds"""


def main() -> None:
    """Measures everything; exits with code 2 and one line of error for wrong usage, 1 without such an accelerator."""
    started = time.time()
    listed = "".join(f"  {name:9} {what}\n" for name, what in SECTIONS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nsections, the most important first:\n{listed}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--platform", choices=("gpu", "tpu", "cpu"), default="gpu", help="(default: gpu)")
    parser.add_argument("--seconds", type=float, default=480.0, metavar="S", help="for everything (default: 480)")
    parser.add_argument("--sections", default=",".join(SECTIONS), metavar="NAME,...", help="(default: all)")
    parser.add_argument(
        "--compile-only", action="store_true", help="only compile, for the --target: it need not be there"
    )
    parser.add_argument("--target", choices=("h100", "h200", "tpu-v5e"), help="of --compile-only (default: h100)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="with wheels of missing packages")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="(default: accelerator.md or compiled-TARGET.md of docs/results)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    for argument in sys.argv[1:]:
        if argument.endswith("=--"):  # argparse would give an empty list
            parser.error(f"argument {argument[:-3]}: '--' is no value")
    args = parser.parse_args()
    if args.target and not args.compile_only:
        parser.error("--target goes with --compile-only")
    args.target, args.small = args.target or "h100", args.seconds < 240
    if args.output is None:
        args.output = RESULTS / (f"compiled-{args.target}.md" if args.compile_only else "accelerator.md")
    args.sections = tuple(args.sections.split(","))
    known = [*SECTIONS, *(f"training:{agent}" for agent in AGENTS)]
    for name in args.sections:
        if name not in known:
            parser.error(f"unknown section {name!r}: known are {', '.join(known)}")
    args.parts = [each for name in args.sections for each in (known[-len(AGENTS) :] if name == "training" else [name])]
    if not 1 <= args.seconds <= 86_400:
        parser.error(f"--seconds {args.seconds:g}: must be from 1 to 86,400")
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed {args.seed}: must be from 0 to 2^32 - 1")
    if args.output.suffix != ".md":
        parser.error(f"--output {args.output}: must be a file that ends in .md")
    with tempfile.TemporaryDirectory(prefix="graphrl-wheels-") as folder:
        if args.wheels is not None:
            _unpack(args.wheels, folder, parser)
            sys.path.insert(0, folder)
        sys.path.append(str(ROOT))
        try:
            if args.compile_only:
                os.environ["JAX_PLATFORMS"] = "cpu"  # else jax leaves out the compiler of a GPU that it does not find
                from reproduce.accelerator.compiled import run as compile_only

                sys.exit(compile_only(args))
            from reproduce.accelerator.run import run
        except ModuleNotFoundError as error:
            sys.exit(f"accelerator: the package {error.name} is missing: name the folder of its wheel: --wheels FOLDER")
        sys.exit(run(args, started))


def _unpack(wheels: Path, folder: str, parser: argparse.ArgumentParser) -> None:
    """Extracts all wheels: they are archives of packages that can be imported as they are."""
    paths = sorted(wheels.glob("*.whl"))
    if not paths:
        parser.error(f"--wheels {wheels}: must be a folder with files that end in .whl")
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        except (zipfile.BadZipFile, OSError) as error:
            parser.error(f"--wheels: {path} is no wheel: {error}")


if __name__ == "__main__":
    main()
