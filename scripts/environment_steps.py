"""Writes docs/results/throughput-environments.md: steps a second of the environments, by `graphrl bench`.

With --models it writes throughput-models.md instead: random actions on a JAX function, an ONNX file and an HLO module,
in one compiled program and through gymnasium's adapter.

python scripts/environment_steps.py                                        # all cells, on one core
python scripts/environment_steps.py --seconds 10min
python scripts/environment_steps.py --seconds 10min --rows out/bench.jsonl # of such a run of graphrl bench
python scripts/environment_steps.py --models                               # three models, in ten minutes
"""

import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import onnx
from reproduce.launcher import command as launched
from reproduce.results import Origin, Table, here, results_text

import graphrl
from graphrl.bench.envs import ROLLOUTS
from graphrl.bench.report import STEPS_TABLE
from graphrl.bench.steps import StepRow
from graphrl.cli import main as run_command
from graphrl.commands.parser import Parser
from graphrl.compare.report import markdown
from graphrl.files import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PAGE, MODELS_PAGE = RESULTS / "throughput-environments.md", RESULTS / "throughput-models.md"
COMMAND = "bench", "--envs", "all", "--threads", "1"
TITLE = "Steps a second of the environments"
SETTING = (
    "`jax.vmap` of policy and `env.step` in one program, a `jax.lax.scan` of up to 64 steps from the start of an "
    "episode; resets and compiling are not timed. Random: valid actions, uniformly. Network: the untrained network of "
    "Topoformer, EGRL, GO or REGAL, of the default size, chooses (`Sharding-v0` has none); Topoformer's runs once an "
    "episode, so its calls are that and whole episodes. Random graphs of three families, up to 64 different ones; of "
    "memory maps ResNet-50 (57 ops), BERT (376) and layered graphs; of shardings random models of layers. A step of "
    "`Ordering-v0` is one op, a step of the others a whole decision; one of `Proposal-v0` is a BRKGA run of 5,000 "
    "evaluations. Pure JAX: what `GRAPHRL_LOWERING=jax` runs, "
    "where that is another program."
)

GRAPHS = [env for env, rollouts in ROLLOUTS.items() if rollouts.takes_graphs]  # their models are computation graphs
COUNTS = 1, 64, 1024
MODELS_COMMAND = *COMMAND, "--policies", "random,gymnasium", "--counts", ",".join(map(str, COUNTS)), "--all"
MODELS_TITLE = "Steps a second on models, also through gymnasium"
MODELS_SETTING = (
    "Random valid actions; environments with their default options. Columns are numbers of parallel environments. "
    "One program: `jax.vmap` of `env.sample_action` and `env.step`, a `jax.lax.scan` of up to 64 steps; no resets. "
    "gymnasium: a Python loop over `to_gymnasium` (1) or `to_gymnasium_vector`, where NumPy draws actions from the "
    "`action_mask` of the observation; with resets, which in `Proposal-v0` are searches. On CPUs, `Compile-v0` and "
    "`Proposal-v0` call compiled host code (the default); the ratio is to the same program in pure JAX. "
    "`MemoryMap-v0` takes the layers of ONNX and HLO. -: a call would take more than 4 s, or too much memory. "
    "The machine is shared; CPU time counts."
)
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"


def mlp(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Computes the loss of a perceptron."""
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x.sum()


def models(folder: Path) -> dict[str, str]:
    """Makes the models: what `graphrl bench --models` takes -> what the page calls it."""
    function, path = jax.grad(mlp), folder / "mlp.json"
    graphrl.write_json(graphrl.from_jax(function, [jnp.ones((64, 64))] * 6, jnp.ones((8, 64))), path)
    return {
        str(path): "a JAX function (gradient of a perceptron)",
        str(LIGHT): "an ONNX file (ResNet-50)",
        "zoo:resnet50/training/b8/hlo": "an HLO module (training step of ResNet-50)",
    }


def models_page(rows: Sequence[StepRow], names: dict[str, str], command: str) -> str:
    """Returns the page of models: a line for each environment and model."""
    rates = {(row.env, row.model, row.policy, row.envs): row for row in rows}
    lines = []
    for env, model in itertools.product(GRAPHS, names):
        cells = [rates[env, model, policy, count] for policy in ("random", "gymnasium") for count in COUNTS]
        figures = [STEPS_TABLE.columns["steps / s"](row) for row in cells]
        lines.append([env, names[model], f"{cells[0].n:,}", *figures, STEPS_TABLE.columns["times pure JAX"](cells[1])])
    head = [f"{text}{count:,}" for text in ("one program: ", "gymnasium: ") for count in COUNTS]
    table = markdown(["environment", "model", "ops", *head, "64: times pure JAX"], lines)
    first, texts = next(iter(names)), []
    for env in GRAPHS:
        one, many = (rates[env, first, "gymnasium", count] for count in (1, 64))
        if one.steps_per_s and many.steps_per_s:
            rate, times = STEPS_TABLE.columns["steps / s"](many), many.steps_per_s / one.steps_per_s
            texts.append(f"{rate} of `{env}` ({times:.3g} times those of one)")
    summary = (
        f"Steps a second of 64 environments in gymnasium's vector environment, on {names[first]}: {', '.join(texts)}."
    )
    return results_text(MODELS_TITLE, [Table(MODELS_TITLE, _origin(rows), (MODELS_SETTING, table), summary)], command)


def measured(command: Sequence[str], folder: Path) -> list[StepRow]:
    """Runs the command; returns the rows.

    Raises:
      SystemExit: the measurement fails.
    """
    if code := run_command([*command, "--output", str(folder)]):
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
    return results_text(
        TITLE, [Table(TITLE, _origin(rows), (SETTING, table), _summary(rows))], f"graphrl {' '.join(command)}"
    )


def _origin(rows: Sequence[StepRow]) -> Origin:
    return here()._replace(hardware=frozenset([f"{rows[0].device_kind}, one core"]))


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
    parser = Parser(description=__doc__, epilog=f"writes {PAGE.name} or {MODELS_PAGE.name}")
    parser.add_argument("--models", action="store_true", help="measure three models, also through gymnasium")
    parser.add_argument("--seconds", metavar="TIME", help="time limit (default: none)")
    parser.add_argument("--rows", type=Path, metavar="FILE.jsonl", help="rows to write (default: measure them)")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="(default: the page in docs/results)")
    args = parser.parse_args()
    if args.models and (args.seconds or args.rows):
        parser.error("--models measures all cells: leave --seconds and --rows out")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.models:
            names = models(folder)
            rows = measured([*MODELS_COMMAND, "--models", ",".join(names)], folder)
            text = models_page(rows, names, launched())
        else:
            command = [*COMMAND, *(["--all"] if args.seconds is None else ["--seconds", args.seconds])]
            text = page(measured(command, folder) if args.rows is None else read(args.rows), command)
    write_atomically(args.output or (MODELS_PAGE if args.models else PAGE), lambda file: file.write(text))


if __name__ == "__main__":
    main()
