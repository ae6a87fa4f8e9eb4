"""Measures every case with graphrl, on CPUs alternating compiled costs with pure JAX, and builds the table rows.

`search_program` compiles whole BRKGA runs, and their parts, for timing. `cached_compile_seconds` measures the compile
time with a filled compilation cache, in separate processes: `python -m graphrl.bench.measure` is such a process, and
prints the seconds.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Case, Row, Settings, Work
from graphrl.bench.timing import (
    BY_GRAPH,
    Limit,
    Log,
    Program,
    Samples,
    compile_program,
    graphrl_evaluation,
    interleaved,
    repeated_calls,
    spread,
    timed_fields,
)
from graphrl.compiled.custom_call import is_compiled
from graphrl.costs.device.decisions import DeviceProblem, num_genes
from graphrl.errors import GraphrlError
from graphrl.graphs.padding import PaddedGraph, common_sizes, pad_batch
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.brkga import BetaTable, beta_table, run_batch


def cached_compile_seconds(work: Work) -> float:
    """Measures the seconds that a second process takes to trace the BRKGA program of a case and load it from the cache.

    Raises:
      GraphrlError: one of the two processes fails.
    """
    with tempfile.TemporaryDirectory(prefix="graphrl-bench-") as cache:
        what = (json.dumps(dataclasses.asdict(part)) for part in (work.settings, work.case))
        command = [sys.executable, "-m", "graphrl.bench.measure", cache, *what]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise GraphrlError(f"measuring a process start failed: {last}")
        return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Compiles a case's BRKGA program with a compilation cache, and prints the seconds (`cached_compile_seconds`)."""
    import jax

    from graphrl.bench import machine

    cache, settings, case = sys.argv[1], Settings(**json.loads(sys.argv[2])), Case(**json.loads(sys.argv[3]))
    machine.configure(settings.threads)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    print(graphrl_search(Work(settings, case)).compile_s)


def graphrl_search(work: Work, *, proposals: bool = False) -> Program:
    """Compiles graphrl's BRKGA on every graph of a case.

    Args:
      work: the case.
      proposals: True draws every mutant gene from its own Beta distribution instead of the uniform one.
    """
    graphs, problem, settings = work.graphs, work.problem, work.settings
    mesh = work.mesh(len(graphs))
    genes = num_genes(common_sizes(graphs), problem.devices)
    shapes = np.random.default_rng(settings.seed).uniform(0.5, 5.0, (2, genes, len(graphs))).astype(np.float32)

    def run(graph: PaddedGraph, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        table: BetaTable | None = beta_table(*jnp.asarray(shapes)) if proposals else None
        return run_batch(keys, graph, problem, PARAMETERS, settings.evaluations, table, mesh=mesh)

    each = PARAMETERS.generations(settings.evaluations) * PARAMETERS.offspring
    return search_program(run, pad_batch(graphs), each, mesh, settings.seed)


def own_work(work: Work) -> Program:
    """Compiles a BRKGA run without decoding, to time BRKGA's own work: the fitness is the sum of the genes."""
    generations, mesh = PARAMETERS.generations(work.settings.evaluations), work.mesh(len(work.graphs))

    def evolve(graph: PaddedGraph, keys: jax.Array, _: jax.Array) -> jax.Array:
        def generation(_: jax.Array, state: brkga.State) -> brkga.State:
            return brkga._next(state, state.offspring.sum(0), PARAMETERS, None)

        first = brkga.init(keys, graph, DeviceProblem.of(work.problem), PARAMETERS)
        state = lax.fori_loop(0, generations, generation, first)
        return brkga.best(state)[0].T

    alone, batch = spread(evolve, mesh), pad_batch(work.graphs)
    each = generations * PARAMETERS.offspring
    return search_program(lambda graph, keys: alone(graph, keys, 0), batch, each, mesh, work.settings.seed)


def search_program(
    run: Callable[[Any, jax.Array], Any], batch: Any, evaluations: int, mesh: Mesh, seed: int
) -> Program:
    """Compiles a search; every run repeats it with the same keys. `evaluations` is the number per graph and run."""
    graphs = len(jax.tree.leaves(batch)[0])
    keys = jax.random.split(jax.random.key(seed), graphs)
    arguments = jax.device_put((batch, keys), NamedSharding(mesh, BY_GRAPH))
    compiled, compile_s = compile_program(run, *arguments)
    return Program(repeated_calls(compiled, arguments, graphs * evaluations), compile_s)


GRAPHRL, JAX = "graphrl", "pure JAX"


def measure(settings: Settings, limit: Limit, log: Log) -> Iterator[list[Row]]:
    """Measures each case in turn, and yields graphrl's row and, for decoding on CPUs, that of pure JAX.

    Args:
      settings: settings of the run, with its cases.
      limit: time limit of the run.
      log: receives progress, with the title of the case (`case_title`).

    Raises:
      GraphrlError: the two compute different costs.
      ProblemError: jax has fewer devices than the requested threads.
    """
    with machine.pinned(settings.threads) as pinned:
        machine.configure(settings.threads)
        for case in limit.within(list(settings.cases())):
            yield _rows(settings, case, pinned, log)


def case_title(case: Case) -> str:
    """Names a case in progress."""
    return f"n = {case.num_ops}, {case.title}, {case.graphs} graph{'s' * (case.graphs > 1)}"


def _programs(work: Work, log: Log) -> dict[str, Program]:
    log(f"preparing {GRAPHRL}")
    if work.case.search:
        return {GRAPHRL: graphrl_search(work)}
    programs = {GRAPHRL: graphrl_evaluation(work)}
    if jax.default_backend() == "cpu" and is_compiled():
        log(f"preparing {JAX}")
        programs[JAX] = graphrl_evaluation(work, "rows")
    return programs


def _rows(settings: Settings, case: Case, pinned: bool, log_line: Log) -> list[Row]:
    """Compiles the programs of a case, compares their results, and times them in turns."""

    def log(text: str) -> None:
        log_line(f"{case_title(case)}: {text}")

    work = Work(settings, case)
    programs = _programs(work, log)
    check_agreement(programs)
    parts: dict[str, Program] = {}
    cached = None
    if case.search:
        log("preparing graphrl's parts")  # for the shares of a run: its own work alone, and Beta proposals
        parts = {"own": own_work(work), "beta": graphrl_search(work, proposals=True)}
        if not case.makespan:
            log("starting processes with a compilation cache")
            cached = cached_compile_seconds(work)
    log(f"timing {', '.join(programs)}")
    runs = {name: program.run for name, program in (programs | parts).items()}
    samples = dict(zip(runs, interleaved(list(runs.values()), settings.repeats, settings.seconds), strict=True))
    rows = [_row(settings, case, method, program, samples, pinned) for method, program in programs.items()]
    if parts:
        whole, own, beta = (samples[name].per_second(machine.clock(pinned)) for name in (GRAPHRL, "own", "beta"))
        rows[0] = dataclasses.replace(
            rows[0], cached_compile_s=cached, own_share=whole / own, beta_share=1 - beta / whole
        )
    return rows


def check_agreement(programs: Mapping[str, Program]) -> None:
    """Checks that all programs compute the same costs.

    Raises:
      GraphrlError: two differ on a chromosome, by more than the rounding of float32 sums on large graphs.
    """
    costs = {method: program.costs for method, program in programs.items() if program.costs is not None}
    first = next(iter(costs), None)
    for method in costs:
        assert first is not None
        for name, expected, computed in zip(("makespan", "peak memory"), costs[first], costs[method], strict=True):
            same = np.isclose(expected[: len(computed)].astype(float), computed.astype(float), rtol=1e-5, atol=0)
            if not same.all():
                where = tuple(np.argwhere(~same)[0].tolist())
                raise GraphrlError(
                    f"{name} of graph {where[0]}, chromosome {where[1]}: {first} computes {expected[where]} and "
                    f"{method} {computed[where]}: one of them is wrong"
                )


def _row(
    settings: Settings, case: Case, method: str, program: Program, samples: Mapping[str, Samples], pinned: bool
) -> Row:
    clock, timed_runs = machine.clock(pinned), samples[method]
    rate = timed_runs.per_second(clock)
    baselines = (name for name in samples if name not in (GRAPHRL, "own", "beta"))
    fields = timed_fields(settings, pinned, program.compile_s, timed_runs)
    return Row(
        **fields,
        what=case.what,
        method=method,
        n=case.num_ops,
        graphs=case.graphs,
        population=PARAMETERS.population,
        devices=DEVICES,
        transfer=case.transfer,
        objective=case.objective if case.search else None,
        evaluations=timed_runs.evaluations,
        wall_s=timed_runs.median("wall"),
        cpu_s=timed_runs.median("cpu"),
        evaluations_per_s=rate,
        ratios={name: rate / samples[name].per_second(clock) for name in baselines},
    )


if __name__ == "__main__":
    main()
