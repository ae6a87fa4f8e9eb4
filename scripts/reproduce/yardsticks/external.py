"""A compiled reference that the user brings.

It decodes ops alone: transfers are no nodes and have no keys, so that it does less work than graphrl. It is called as

    REFERENCE bench GRAPH THREADS 5 RUNS                           costs 100 random chromosomes, prints "... X ev/s ..."
    REFERENCE brkga|brkga_mk GRAPH THREADS 5 OBJECTIVE SEED P G    a BRKGA run, prints JSON with "s", its seconds

(5 is its tuned decoder; the objective is 0 for memory and 1 for makespan, which "brkga_mk" runs without counting
memory; a run makes P + (G - 1) * 0.8 P evaluations). Its seconds are CPU time, or wall time if $WALL is set. GRAPH is
a binary file: int32 ops and edges, int32 sources, int32 targets, float32 bytes by op, float32 seconds by op.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphrl.bench.cases import PARAMETERS
from graphrl.bench.measure import Unavailable, Work
from graphrl.bench.timing import Program, Sample
from graphrl.errors import GraphrlError
from graphrl.files import shown
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.chromosomes.brkga import Parameters
from reproduce.yardsticks.compiled import compile_cpp

POPULATION = 100  # of its "bench"
_TUNED = "5"
_NOTE = "decodes ops only (no transfer nodes, no transfer keys): less work an evaluation"


class Reference:
    """The user's reference, compiled if it is C++ source.

    Args:
      path: of the program or its source.
      threads: that it may use; CPU time counts with one, else wall time.

    Raises:
      GraphrlError: there is no such file, or it cannot be compiled.
    """

    def __init__(self, path: str, threads: int) -> None:
        if not os.path.isfile(path):
            raise GraphrlError(f"cannot read {shown(path)}: it is no file")
        self._threads = threads
        self._folder = Path(tempfile.mkdtemp(prefix="graphrl-bench-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._binary = Path(path).resolve()
        if self._binary.suffix in (".cpp", ".cc", ".cxx"):
            source, self._binary = self._binary, self._folder / "reference"
            compile_cpp(source, self._binary)

    def program(self, work: Work) -> Program:
        """The program to be timed on a case.

        Raises:
          Unavailable: it has none.
        """
        case = work.case
        if case.search:
            generations = PARAMETERS.generations(work.settings.evaluations)
            return self.search(work.graphs, case.objective, PARAMETERS, generations, work.settings.seed)
        if case.makespan and case.memory and case.transfer == "free":
            return self.evaluation(work.graphs)
        raise Unavailable("costs makespan and memory together only, under free transfers")

    def evaluation(self, graphs: Sequence[ComputationGraph]) -> Program:
        """Costs (makespan and memory, free transfers) of random chromosomes of every graph."""
        files = self._write(graphs)

        def run(runs: int) -> Sample:
            seconds = 0.0
            for file in files:
                text = self._call("bench", file, self._threads, _TUNED, runs)
                rate = re.search(r"([\d.]+) ev/s", text)
                if not rate:
                    raise GraphrlError(f"{shown(self._binary)} bench printed {text[:80]!r}: must say '... ev/s'")
                seconds += runs * POPULATION / float(rate[1])
            return self._sample(runs * POPULATION * len(files), seconds)

        return Program(run, graphs=len(files), population=POPULATION, on_host=True, note=_NOTE)

    def search(
        self, graphs: Sequence[ComputationGraph], objective: str, parameters: Parameters, generations: int, seed: int
    ) -> Program:
        """BRKGA on every graph, one after the other; all threads work on one."""
        files = self._write(graphs)
        mode, number = ("brkga_mk", 1) if objective == "makespan" else ("brkga", 0)
        settings = _TUNED, number, seed, parameters.population, generations
        each = parameters.population + (generations - 1) * (parameters.population - parameters.population // 5)

        def run(runs: int) -> Sample:
            seconds = 0.0
            for file in files * runs:
                text = self._call(mode, file, self._threads, *settings)
                try:
                    seconds += float(json.loads(text)["s"])
                except (ValueError, KeyError, TypeError):
                    raise GraphrlError(
                        f"{shown(self._binary)} {mode} printed {text[:80]!r}: must be JSON with 's', its seconds"
                    ) from None
            return self._sample(runs * len(files) * each, seconds)

        return Program(run, graphs=len(files), population=parameters.population, on_host=True, note=_NOTE)

    def _sample(self, evaluations: int, seconds: float) -> Sample:
        return Sample(evaluations, seconds, None) if self._threads > 1 else Sample(evaluations, None, seconds)

    def _call(self, *arguments: object) -> str:
        command = [str(self._binary), *map(str, arguments)]
        environment = {k: v for k, v in os.environ.items() if k != "WALL"} | (
            {"WALL": "1"} if self._threads > 1 else {}
        )
        environment.pop("OMP_WAIT_POLICY", None)  # nothing runs beside it
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Unavailable(f"cannot run {shown(self._binary)}: {error.strerror or error}") from None
        if done.returncode != 0:
            raise GraphrlError(f"{shown(self._binary)} {arguments[0]} failed with exit code {done.returncode}")
        return done.stdout

    def _write(self, graphs: Sequence[ComputationGraph]) -> list[Path]:
        files = []
        for graph in graphs:
            files.append(self._folder / f"{graph.name}.bin")
            files[-1].write_bytes(binary_graph(graph))
        return files


def binary_graph(graph: ComputationGraph) -> bytes:
    """A graph whose ops write one tensor each, in the reference's file format (ops in topological order)."""
    a = graph.arrays
    if a.num_tensors != a.num_ops or (a.producer != np.arange(a.num_ops)).any():
        raise GraphrlError(f"graph {graph.name!r}: a reference takes graphs whose ops write one tensor each")
    order = np.lexsort((a.use_op, a.use_tensor))
    parts = (
        np.array([a.num_ops, len(order)], np.int32),
        a.use_tensor[order].astype(np.int32),
        a.use_op[order].astype(np.int32),
        a.tensor_bytes.astype(np.float32),
        a.runtime.astype(np.float32),
    )
    return b"".join(part.tobytes() for part in parts)
