"""The compiled yardstick: reference.cpp, built where a compiler is at hand and called through ctypes."""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphrl.bench.cases import PARAMETERS, Work
from graphrl.bench.measure import Unavailable
from graphrl.bench.timing import Costs, Program, timed
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.chromosomes.brkga import Parameters

SOURCE = Path(__file__).with_name("reference.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp")
_TRANSFERS = ("rendezvous", "free", "link")


class _GraphArrays(ctypes.Structure):
    """`GraphArrays` of reference.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("ops", "tensors", "uses", "controls")),
        *(
            (name, ctypes.c_void_p)
            for name in ("runtime", "transfer_seconds", "workspace", "bytes", "kept", "producer")
        ),
        *((name, ctypes.c_void_p) for name in ("use_tensor", "use_op", "control_source", "control_target")),
    )


class _Parameters(ctypes.Structure):
    """`Parameters` of reference.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("population", "elites", "mutants", "generations")),
        ("elite_bias", ctypes.c_float),
    )


def find_compiler() -> str:
    """The C++ compiler: $CXX, or the first of c++, g++ and clang++.

    Raises:
      Unavailable: there is none.
    """
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        if path := shutil.which(name):
            return path
    raise Unavailable(f"no C++ compiler: {named or ', '.join(_COMPILERS)} not found")


def compile_cpp(source: Path, target: Path, *flags: str) -> None:
    """Compiles one C++ file for this machine.

    Raises:
      Unavailable: there is no compiler, or it fails.
    """
    command = [find_compiler(), *_FLAGS, *flags, str(source), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} failed: {error}") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
        raise Unavailable(f"{command[0]} failed on {source.name}: {lines[0]}")


@functools.cache
def library(devices: int) -> ctypes.CDLL:
    """reference.cpp for a number of devices, built once a process.

    Raises:
      Unavailable: see `compile_cpp`.
    """
    # idle OpenMP threads sleep: by default they spin, and slow down what is timed next
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory(prefix="graphrl-bench-") as folder:
        built = Path(folder) / "reference.so"
        compile_cpp(SOURCE, built, "-shared", "-fPIC", f"-DDEVICES={devices}")
        loaded = ctypes.CDLL(str(built))
    loaded.graph_new.restype = ctypes.c_void_p
    loaded.graph_new.argtypes = [ctypes.c_void_p]
    loaded.graph_delete.argtypes = [ctypes.c_void_p]
    p, i = ctypes.c_void_p, ctypes.c_int
    loaded.evaluate.argtypes = [p, i, i, i, i, p, i, i, i, p, p]
    loaded.search.argtypes = [p, i, i, i, p, ctypes.c_uint64, i, p, p]
    return loaded


class CompiledGraphs:
    """A batch of graphs as reference.cpp holds them. Threads take whole graphs: give it at least as many.

    Args:
      graphs: without aliases and reuses.
      problem: without resident weights and memory limit.

    Raises:
      Unavailable: there is no compiled yardstick here.
      GraphrlError: it does not support such a graph or problem.
    """

    def __init__(self, graphs: Sequence[ComputationGraph], problem: Problem) -> None:
        check_supported(graphs, problem)
        self._library = library(problem.devices)
        self._problem = problem
        self._graphs = list(graphs)
        d = problem.devices
        self._genes = [(d + 1) * g.arrays.num_ops + d * g.arrays.num_tensors for g in graphs]
        self._handles = (ctypes.c_void_p * len(self._graphs))(*(self._new(graph) for graph in graphs))
        weakref.finalize(self, _delete, self._library, list(self._handles))

    def evaluate(
        self, genes: Sequence[np.ndarray], *, timed: bool, memory: bool, repeats: int = 1, threads: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Costs chromosomes, `repeats` times over.

        Args:
          genes: `[count, genes]` float32 of each graph (graphrl/bench/graphs.py).

        Returns:
          Makespans `[g, count]` float32, seconds, and peaks `[g, count, d]` int64, bytes; 0 if not asked for.
        """
        arrays = [np.ascontiguousarray(x, np.float32) for x in genes]
        (count,) = {len(x) for x in arrays}
        assert [x.shape[1] for x in arrays] == self._genes
        makespan = np.zeros((len(arrays), count), np.float32)
        peak = np.zeros((len(arrays), count, self._problem.devices), np.int64)
        self._library.evaluate(
            *(self._handles, len(arrays), self._transfer, timed, memory, _pointers(arrays), count, repeats, threads),
            *(makespan.ctypes.data, peak.ctypes.data),
        )
        return makespan, peak

    def search(
        self, parameters: Parameters, generations: int, seed: int, threads: int = 1
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """One BRKGA run on each graph.

        Returns:
          The best objective of each graph, `[g]` float64 bytes or seconds, and its chromosome, `[genes]` each.
        """
        values = np.zeros(len(self._graphs))
        best = [np.zeros(genes, np.float32) for genes in self._genes]
        p = parameters
        settings = _Parameters(p.population, p.elites, p.mutants, generations, p.elite_bias)
        self._library.search(
            *(self._handles, len(best), self._transfer, self._problem.objective == "makespan"),
            *(ctypes.addressof(settings), seed, threads, values.ctypes.data, _pointers(best)),
        )
        return values, best

    @property
    def _transfer(self) -> int:
        return _TRANSFERS.index(self._problem.transfer)

    def _new(self, graph: ComputationGraph) -> int:
        a = graph.arrays
        seconds = np.array([self._problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()], np.float32)
        fields: list[np.ndarray] = [
            a.runtime.astype(np.float32),
            seconds,
            a.workspace_bytes,
            a.tensor_bytes,
            a.kept.astype(np.uint8),
            *(a.producer, a.use_tensor, a.use_op, a.control_source, a.control_target),
        ]
        fields = [np.ascontiguousarray(field) for field in fields]  # reference.cpp copies what it gets
        sizes = a.num_ops, a.num_tensors, len(a.use_op), len(a.control_source)
        arrays = _GraphArrays(*sizes, *(field.ctypes.data for field in fields))
        return self._library.graph_new(ctypes.addressof(arrays))


def program(work: Work) -> Program:
    """The program to be timed on a case.

    Raises:
      Unavailable: there is no compiled yardstick here.
    """
    graphs, case, settings = CompiledGraphs(work.graphs, work.problem), work.case, work.settings
    generations = PARAMETERS.generations(settings.evaluations)

    def search(runs: int) -> int:
        for _ in range(runs):
            graphs.search(PARAMETERS, generations, settings.seed, settings.threads)
        return runs * len(work.graphs) * generations * PARAMETERS.offspring

    def evaluate(runs: int) -> int:
        graphs.evaluate(
            work.chromosomes, timed=case.makespan, memory=case.memory, repeats=runs, threads=settings.threads
        )
        return runs * len(work.graphs) * PARAMETERS.population

    costs = None
    if not case.search:
        costs = Costs(*graphs.evaluate(work.chromosomes, timed=case.makespan, memory=case.memory))
    run = timed(search if case.search else evaluate)
    return Program(run, graphs=len(work.graphs), population=PARAMETERS.population, costs=costs, on_host=True)


def check_supported(graphs: Sequence[ComputationGraph], problem: Problem) -> None:
    """Refuses what the yardsticks leave out.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    for graph in graphs:
        if (graph.arrays.alias >= 0).any() or (graph.arrays.reuses >= 0).any():
            raise GraphrlError(f"graph {graph.name!r} has aliases or reuses: the benchmark's yardsticks know none")
    if problem.resident_weights or problem.memory_limit is not None:
        raise GraphrlError("resident weights and memory limits: the benchmark's yardsticks know none")


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _delete(built: ctypes.CDLL, handles: Sequence[int]) -> None:
    for handle in handles:
        built.graph_delete(handle)
