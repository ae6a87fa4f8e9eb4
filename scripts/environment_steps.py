"""Writes docs/results/throughput-environments.md: steps a second of the environments, by `graphrl bench`.

python scripts/environment_steps.py                                        # all cells, on one core
python scripts/environment_steps.py --seconds 10min
python scripts/environment_steps.py --seconds 10min --rows out/bench.jsonl # of such a run of graphrl bench
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reproduce.results import Origin, Table, here, results_text

from graphrl.bench.envs import ROLLOUTS
from graphrl.bench.steps import STEPS_TABLE, StepRow
from graphrl.cli import main as graphrl
from graphrl.commands.parser import Parser
from graphrl.compare.report import markdown
from graphrl.files import write_atomically

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "throughput-environments.md"
COMMAND = "bench", "--envs", "all", "--threads", "1"
TITLE = "Steps a second of the environments"
SETTING = (
    "`jax.vmap` of policy and `env.step` in one program, a `jax.lax.scan` of up to 64 steps from the start of an "
    "episode; resets and compiling are not timed. Random: valid actions, uniformly. Network: the untrained network of "
    "Topoformer, EGRL, GO or REGAL, of the default size, chooses; Topoformer's runs once an episode, so its calls are "
    "that and whole episodes. Random graphs of three families, up to 64 different ones; of memory maps ResNet-50 "
    "(57 ops), BERT (376) and layered graphs. A step of `Ordering-v0` is one op, a step of the others a whole "
    "decision; one of `Proposal-v0` is a BRKGA run of 5,000 evaluations. Pure JAX: what `GRAPHRL_LOWERING=jax` runs, "
    "where that is another program."
)


def measured(command: Sequence[str], folder: Path) -> list[StepRow]:
    """Runs the command; returns the rows.

    Raises:
      SystemExit: the measurement fails.
    """
    if code := graphrl([*command, "--output", str(folder)]):
        raise SystemExit(code)
    return read(folder / "bench.jsonl")


def read(path: Path) -> list[StepRow]:
    """Reads rows that `graphrl bench` wrote."""
    return [StepRow(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def page(rows: Sequence[StepRow], command: Sequence[str]) -> str:
    """Returns the page's text."""
    ids = list(ROLLOUTS)
    rows = sorted(rows, key=lambda row: (ids.index(row.env), row.policy == "network", row.size, row.envs))
    columns = {name or "not measured": text for name, text in STEPS_TABLE.columns.items()}
    table = markdown(list(columns), [[text(row) for text in columns.values()] for row in rows])
    origin = here()
    origin = Origin(frozenset([0]), frozenset([f"{rows[0].device_kind}, one core"]), origin.versions, origin.dates)
    return results_text(TITLE, [Table(TITLE, origin, (SETTING, table), _summary(rows))], f"graphrl {' '.join(command)}")


def _summary(rows: Sequence[StepRow]) -> str:
    """Returns the sentence to quote: the best rate of each environment for the smallest graphs, with random actions."""
    least = min(row.size for row in rows)
    rates: dict[str, list[tuple[float, StepRow]]] = {}
    for row in rows:
        if row.policy == "random" and row.size == least and row.steps_per_s is not None:
            rates.setdefault(row.env, []).append((row.steps_per_s, row))
    best = [max(pairs, key=lambda pair: pair[0])[1] for pairs in rates.values()]
    texts = (f"{STEPS_TABLE.columns['steps / s'](row)} of `{row.env}` ({row.envs:,} in parallel)" for row in best)
    return f"Steps a second with random actions on graphs of about {least} ops: {', '.join(texts)}."


def main() -> None:
    """Measures, or reads rows, and writes the page."""
    parser = Parser(description=__doc__, epilog=f"writes {PAGE.name}")
    parser.add_argument("--seconds", metavar="TIME", help="time limit (default: none)")
    parser.add_argument("--rows", type=Path, metavar="FILE.jsonl", help="rows to write (default: measure them)")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE.md", help=f"(default: {PAGE.name} of docs)")
    args = parser.parse_args()
    command = [*COMMAND, *(["--all"] if args.seconds is None else ["--seconds", args.seconds])]
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(command, Path(folder)) if args.rows is None else read(args.rows)
    write_atomically(args.output, lambda file: file.write(page(rows, command)))


if __name__ == "__main__":
    main()
