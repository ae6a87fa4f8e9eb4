"""Registry of the families of random graphs by name, and the family `pipeline`.

`sample` draws a graph of any family in `FAMILIES`, with the same arguments for each. Launchers and manifests use these
names of families and options.

`pipeline` draws neural networks for pipelined execution, like the layers and operators of Tarnawski et al. (2020): a
chain of ops with branches and skips; parameters are ops of no run time, read only by the next ops. Few ops have most of
the work. Transfers take almost no time, as between layers, or longer than most ops, as between operators. The ranges
are those of the paper's graphs. Half of the graphs are training steps: every op has a counterpart in the backward pass,
on the same device. The machine has 2 to 6 accelerators and a CPU.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from graphrl.errors import ProblemError, suggest
from graphrl.graphs.datasets.kinds import SHARES, kinds
from graphrl.graphs.datasets.known_optima import (
    LOG_UNIFORM,
    Bytes,
    KnownPeak,
    in_tree,
    out_tree,
    planted,
    series_parallel,
)
from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.graphs.datasets.regal_like import Model, RegalLike, regal_like
from graphrl.graphs.datasets.seeds import check_count, generator, log_uniform
from graphrl.graphs.graph import ComputationGraph, Machine, Op, Pipelined, Tensor

_SPREAD = 0.5, 1.5  # standard deviation of the logarithm of run times
_IDLE = 0.1, 0.5  # fraction of ops without run time
_TRANSFER = 0.01, 10.0  # ratio of the mean tensor's transfer time to the mean op's run time
_CPU = 5.0, 25.0  # ratio of run times on a CPU to those on an accelerator
_MEMORY = 1.2, 8.0  # ratio of the memory of all accelerators to the weights
_GIB = 2**30

Options = Mapping[str, Any]
Sample = tuple[ComputationGraph, dict[str, Any]]  # a graph, and further known figures

_SIZES = dataclasses.asdict(LOG_UNIFORM)


class Family(NamedTuple):
    """A family of graphs.

    Attributes:
      make: function of number of ops (None only if `any_size`), seed and options; returns a graph, and its optimum if
        known ("optimal_peak_memory": bytes on one device; "optimal_makespan": seconds under "free" transfers).
      options: default of each option, by name; a default of None accepts any value.
      any_size: True if the seed may determine the number of ops.
    """

    make: Callable[[Any, int, dict[str, Any]], Sample]
    options: dict[str, Any]
    any_size: bool = False


def sample(family: str, num_ops: int | None, seed: int, options: Options | None = None) -> Sample:
    """Generates one random graph of a family; equal arguments give equal graphs.

    Args:
      family: a key of `FAMILIES`.
      num_ops: number of ops, as the family counts them; None only if the family has `any_size`.
      seed: at least 0.
      options: options of the family by name; missing ones have their defaults.

    Raises:
      ProblemError: the family or an option is unknown, or a value has the wrong type or is out of range.
    """
    if num_ops is None and not find_family(family).any_size:
        raise ProblemError(f"family {family!r}: needs a number of ops")
    return find_family(family).make(num_ops, seed, full_options(family, options))


def pipeline(num_ops: int, seed: int) -> ComputationGraph:
    """Generates a random graph of the family `pipeline`, with its machine (see the module).

    Args:
      num_ops: at least 2; if it is odd, one op of a training step has no counterpart in the backward pass.
      seed: at least 0; graphs of different sizes and seeds are independent.

    Raises:
      ProblemError: a number is out of range.
    """
    check_count("num_ops", num_ops, 2)
    rng = generator("pipeline", seed, num_ops)
    trains = bool(rng.random() < 0.5)
    n = -(-num_ops // 2) if trains else num_ops
    reads = _reads(n, rng)
    runtime = np.exp(rng.normal(0.0, rng.uniform(*_SPREAD), num_ops)) * (rng.random(num_ops) > rng.uniform(*_IDLE))
    sizes = np.exp(rng.normal(0.0, 1.0, num_ops))
    seconds = sizes * (log_uniform(rng, *_TRANSFER) * runtime.mean() / sizes.mean())
    weights = (rng.exponential(1.0, n) * _GIB / n).astype(np.int64)
    slower, limit = rng.uniform(*_CPU), log_uniform(rng, *_MEMORY)
    accelerators = int(rng.integers(2, 7))
    if trains:  # a backward op reads the backward results of its forward op's readers, and the forward op's output
        readers = [[2 * n - 1 - op for op in range(n) if source in reads[op]] for source in range(n)]
        reads += [[*readers[source], source] for source in range(n - 1, 2 * n - 1 - num_ops, -1)]
        reads = reads[:num_ops]
    ops = []
    for op, sources in enumerate(reads):
        forward = op if op < n else 2 * n - 1 - op
        extra = Pipelined(float(slower * runtime[op]), colocation=forward if trains else None, backward=op >= n)
        ops.append(
            Op(
                f"op{op}",
                runtime=float(runtime[op]),
                inputs=tuple(f"t{source}" for source in sources),
                outputs=(Tensor(f"t{op}", int(1000 * sizes[op]) + 1, transfer_seconds=float(seconds[op])),),
                weight_bytes=int(weights[forward]),
                pipelined=extra,
            )
        )
    weights_total = sum(op.weight_bytes for op in ops)
    machine = Machine(accelerators, 1, int(limit * weights_total / accelerators) + 1)
    return ComputationGraph(f"pipeline-{num_ops}-{seed}", tuple(ops), machine=machine)


def _reads(count: int, rng: np.random.Generator) -> list[list[int]]:
    """Draws the ops that each op reads: mostly one of the last few, sometimes an older one; parameters read none."""
    sources, skips = rng.uniform(0.0, 0.3), rng.uniform(0.05, 0.3)
    reads: list[list[int]] = [[]]
    for op in range(1, count):
        if rng.random() < sources:
            reads.append([])
            continue
        steps = [1 if not reads[op - 1] else int(rng.geometric(0.6))]
        if not reads[op - 1] or rng.random() < skips:
            steps.append(int(rng.geometric(0.2)))
        reads.append(sorted({max(0, op - step) for step in steps}))
    return reads


def find_family(name: str) -> Family:
    """Looks up a family by name.

    Raises:
      ProblemError: the name is unknown; the message lists the nearest ones.
    """
    if name not in FAMILIES:
        raise ProblemError(f"unknown graph family {name!r}: {suggest(name, FAMILIES)}")
    return FAMILIES[name]


def full_options(family: str, options: Options | None = None) -> dict[str, Any]:
    """Returns the given options, completed by the defaults of all others. Raises the errors of `sample`."""
    defaults = find_family(family).options
    for name, value in (options or {}).items():
        if name not in defaults:
            raise ProblemError(f"family {family!r} has no option {name!r}: {suggest(name, defaults)}")
        default = defaults[name]
        kind = (int, float) if type(default) is float else type(default)
        if default is not None and (
            not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool)
        ):
            raise ProblemError(f"option {name} is {value!r}: must have the type of its default, {default!r}")
    return {**defaults, **(options or {})}


def _layered(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
    return layered(num_ops, seed, Layered(**options)), {}


def _regal_like(num_ops: int | None, seed: int, options: dict[str, Any]) -> Sample:
    return regal_like(seed, options.pop("model"), num_ops, RegalLike(**options)), {}


def _of_model(model: Model) -> Family:
    """Returns the family of the `regal-like` graphs that one random graph model generates."""

    def sampled(num_ops: int | None, seed: int, options: dict[str, Any]) -> Sample:
        return regal_like(seed, model, num_ops, RegalLike(**options)), {}

    return Family(sampled, dataclasses.asdict(RegalLike()), any_size=True)


def _kinds(num_ops: int | None, seed: int, options: dict[str, Any]) -> Sample:
    return kinds(num_ops, seed, **options), {}


def _of_structure(structure: str) -> Family:
    """Returns the family of the `kinds` graphs of one structure."""
    return Family(
        lambda num_ops, seed, options: _kinds(num_ops, seed, {"structure": structure, **options}),
        {"runtime": None, "transfer": None},
        any_size=True,
    )


def _planted(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
    instance = planted(num_ops, seed=seed, **options)
    return instance.graph, {"optimal_makespan": instance.makespan, "devices": options["devices"], "transfer": "free"}


def _known_peak(make: Callable[..., KnownPeak], shape: str) -> Callable[[int, int, dict[str, Any]], Sample]:
    def sampled(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
        tree = make(num_ops, seed, options.pop(shape), Bytes(**options))
        return tree.graph, {"optimal_peak_memory": tree.peak}

    return sampled


FAMILIES: dict[str, Family] = {
    "layered": Family(_layered, dataclasses.asdict(Layered())),
    "regal-like": Family(_regal_like, {"model": None, **dataclasses.asdict(RegalLike())}, any_size=True),
    "erdos-renyi": _of_model("er"),
    "barabasi-albert": _of_model("ba"),
    "watts-strogatz": _of_model("ws"),
    "stochastic-block": _of_model("sbm"),
    "in-tree": Family(_known_peak(in_tree, "window"), {"window": None, **_SIZES}),
    "out-tree": Family(_known_peak(out_tree, "window"), {"window": None, **_SIZES}),
    "series-parallel": Family(_known_peak(series_parallel, "branching"), {"branching": 0.5, **_SIZES}),
    "pipeline": Family(lambda num_ops, seed, _: (pipeline(num_ops, seed), {}), {}),
    "kinds": Family(_kinds, {"structure": None, "runtime": None, "transfer": None}, any_size=True),
    **{f"kinds-{structure}": _of_structure(structure) for structure in SHARES},
    "planted": Family(_planted, {"devices": 2, "inputs": 2.0, "window": 3}),
}
