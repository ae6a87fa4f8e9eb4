"""All families of random graphs by name, with the same arguments for each: what launchers and manifests speak of."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from graphrl.errors import ProblemError, near
from graphrl.graphs.datasets.known_peak import LOG_UNIFORM, Bytes, KnownPeak, in_tree, out_tree, series_parallel
from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.graphs.datasets.pipelines import pipeline
from graphrl.graphs.datasets.planted import planted
from graphrl.graphs.datasets.regal_like import Model, RegalLike, regal_like
from graphrl.graphs.graph import ComputationGraph

Options = Mapping[str, Any]
Sample = tuple[ComputationGraph, dict[str, Any]]  # a graph, and what is known of it beside


class Family(NamedTuple):
    """A family of graphs.

    Attributes:
      make: number of ops (None only where `any_size`), seed and options -> graph, and its known optimum if there is one
        ("optimal_peak_memory": bytes on one device; "optimal_makespan": seconds under "free" transfers).
      options: names and defaults; a default of None stands for any value.
      any_size: whether the number of ops may be left to the seed.
    """

    make: Callable[[Any, int, dict[str, Any]], Sample]
    options: dict[str, Any]
    any_size: bool = False


def sample(family: str, num_ops: int | None, seed: int, options: Options | None = None) -> Sample:
    """One graph of a family: a pure function of its arguments.

    Args:
      family: a key of `FAMILIES`.
      num_ops: as the family counts them; None only where the family has `any_size`.
      seed: at least 0.
      options: of the family; the rest has its defaults.

    Raises:
      ProblemError: no such family or option, a value of the wrong type or out of range.
    """
    if num_ops is None and not find_family(family).any_size:
        raise ProblemError(f"family {family!r}: needs a number of ops")
    return find_family(family).make(num_ops, seed, full_options(family, options))


def find_family(name: str) -> Family:
    """The family of that name.

    Raises:
      ProblemError: there is none; the message has the nearest ones.
    """
    if name not in FAMILIES:
        raise ProblemError(f"unknown graph family {name!r}: {near(name, FAMILIES)}")
    return FAMILIES[name]


def full_options(family: str, options: Options | None = None) -> dict[str, Any]:
    """The given options and the defaults of all others. Errors as of `sample`."""
    defaults = find_family(family).options
    for name, value in (options or {}).items():
        if name not in defaults:
            raise ProblemError(f"family {family!r} has no option {name!r}: {near(name, defaults)}")
        default = defaults[name]
        wanted = (int, float) if type(default) is float else type(default)
        if default is not None and (
            not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool)
        ):
            raise ProblemError(f"option {name} is {value!r}: must be of the kind of its default, {default!r}")
    return {**defaults, **(options or {})}


def _layered(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
    return layered(num_ops, seed, Layered(**options)), {}


def _regal_like(num_ops: int | None, seed: int, options: dict[str, Any]) -> Sample:
    return regal_like(seed, options.pop("model"), num_ops, RegalLike(**options)), {}


def _of_model(model: Model) -> Family:
    """The graphs of `regal-like` that are of one model."""

    def sampled(num_ops: int | None, seed: int, options: dict[str, Any]) -> Sample:
        return regal_like(seed, model, num_ops, RegalLike(**options)), {}

    return Family(sampled, dataclasses.asdict(RegalLike()), any_size=True)


def _planted(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
    instance = planted(num_ops, seed=seed, **options)
    return instance.graph, {"optimal_makespan": instance.makespan, "devices": options["devices"], "transfer": "free"}


def _known_peak(make: Callable[..., KnownPeak], shape: str) -> Callable[[int, int, dict[str, Any]], Sample]:
    def sampled(num_ops: int, seed: int, options: dict[str, Any]) -> Sample:
        tree = make(num_ops, seed, options.pop(shape), Bytes(**options))
        return tree.graph, {"optimal_peak_memory": tree.peak}

    return sampled


_SIZES = dataclasses.asdict(LOG_UNIFORM)

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
    "planted": Family(_planted, {"devices": 2, "inputs": 2.0, "window": 3}),
}
