"""How several devices share a training step, and the functions of its gradients.

The arguments' shardings are those of the given arrays or shapes, of their types, or of the step's own `jax.jit`. They
spread through the whole step (`shards.py`), and so to the values that the functions of its gradients read. Such values
are recognised by their names: `marked` names them while the step is traced as it is.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.extend.core.primitives import name_p
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from graphrl.errors import ProblemError
from graphrl.graphs.readers.jaxpr.work import inner_jaxprs
from graphrl.graphs.roofline import Chip, Interconnect
from graphrl.xla.checkpoint.collectives import one_device
from graphrl.xla.checkpoint.microbatches import Loss
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.shards import Layout, Scope, Shards, Spec, layout_on, replicated, spec_of, typed_spec

MARK = re.compile(r"argument (\d+) of gradient (\d+)")
Link = str | Interconnect | Mapping[str, str | Interconnect] | None
AnyMesh = Mesh | AbstractMesh


class StepShards(NamedTuple):
    """How devices share a step.

    Attributes:
      layout: the devices.
      arguments: how the step's arguments are split.
      results: how its results are split, as its `jax.jit` says; None where it does not.
      losses: for each function of its gradients, how its arguments are split; None within a `jax.shard_map`, where
        functions have the shapes of shards.
    """

    layout: Layout
    arguments: tuple[Spec, ...]
    results: tuple[Spec | None, ...]
    losses: tuple[tuple[Spec, ...] | None, ...] = ()

    def shards(self, closed: core.ClosedJaxpr) -> Shards:
        """Returns how the values of the traced step are split."""
        return Shards(closed, self.layout, self.arguments, self.results)

    def one_device(self, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
        """Returns the traced step as one device runs it."""
        return one_device(self.shards(closed), closed)

    def on_any_devices(self) -> "StepShards":
        """Returns the same on an abstract mesh, which can be pickled."""
        return self._replace(layout=dataclasses.replace(self.layout, mesh=abstract(self.layout.mesh)))

    def split(self, number: int, loss: Loss) -> Loss:
        """Returns the function of a gradient, traced without shardings, with the shardings of its values."""
        specs = self.losses[number] if number < len(self.losses) else None
        if specs is None or len(specs) != len(loss.program.closed.in_avals):
            return loss
        return loss._replace(program=program_of(loss.program.closed, self.layout, specs))

    def parts(self, axes: Sequence[int | None]) -> int:
        """Returns into how many parts devices split the batch.

        Args:
          axes: for each argument of the step, the axis of the batch; None without.
        """
        pairs = zip(self.arguments, axes, strict=True)
        return math.lcm(*(self.layout.count(spec[axis]) for spec, axis in pairs if axis is not None))


def marked(values: Sequence[Any], number: int) -> list[Any]:
    """Names the values that function `number` of a step's gradients reads, so that `step_shards` recognises them."""
    return [
        name_p.bind(value, name=f"argument {k} of gradient {number}")
        if isinstance(value, jax.core.Tracer) and isinstance(value.aval, jax.core.ShapedArray)
        else value
        for k, value in enumerate(values)
    ]


def step_shards(
    closed: core.ClosedJaxpr, given: Sequence[Any], losses: Sequence[Loss], chip: Chip, link: Link = None
) -> StepShards | None:
    """Returns how devices share a traced step; None if it runs on one.

    Args:
      closed: the step, traced as it is.
      given: for each argument, its own sharding; None without.
      losses: the functions of its gradients.
      chip: the kind of the devices.
      link: the link between them, as in `graphrl.checkpoint`.

    Raises:
      ProblemError: shardings are of different meshes, or of a kind other than `NamedSharding`.
    """
    mesh = _mesh(closed, given)
    if mesh is None:
        return None
    layout, jaxpr = layout_on(mesh, chip, link), closed.jaxpr
    own, returned = dict[Any, Any](), dict[Any, Any]()
    for eqn in jaxpr.eqns:
        own |= _named(eqn.invars, eqn.params.get("in_shardings", ()))
        returned |= _named(eqn.outvars, eqn.params.get("out_shardings", ()))
    arguments = [
        typed_spec(var.aval) or _spec(var, own.get(var) or sharding) or replicated(var.aval)
        for var, sharding in zip(jaxpr.invars, given, strict=True)
    ]
    results = [None if isinstance(atom, core.Literal) else _spec(atom, returned.get(atom)) for atom in jaxpr.outvars]
    shared = StepShards(layout, tuple(arguments), tuple(results))
    shards = shared.shards(closed)
    named = [dict[int, Spec]() for _ in losses]
    for number, place, spec in _marks(shards, shards.scope):
        named[number][place] = spec
    return shared._replace(losses=tuple(_of_loss(*pair) for pair in zip(losses, named, strict=True)))


def abstract(value: Any) -> Any:
    """Converts the meshes in a jaxpr, in an equation's parameter or in a sharding to abstract ones, for any devices."""
    if isinstance(value, Mesh | AbstractMesh):
        return AbstractMesh(value.axis_sizes, value.axis_names, axis_types=value.axis_types)
    if isinstance(value, NamedSharding):
        return NamedSharding(abstract(value.mesh), value.spec, memory_kind=value.memory_kind)
    if isinstance(value, core.ClosedJaxpr):
        return core.ClosedJaxpr(abstract(value.jaxpr), value.consts)
    if isinstance(value, core.Jaxpr):
        equations = [
            eqn.replace(params={key: abstract(each) for key, each in eqn.params.items()}) for eqn in value.eqns
        ]
        return value.replace(eqns=equations)
    return type(value)(map(abstract, value)) if type(value) in (tuple, list) else value


def _of_loss(loss: Loss, named: dict[int, Spec]) -> tuple[Spec, ...] | None:
    """Returns how the arguments of a function are split, given those that are named; None if there are none."""
    if not named:
        return None
    whole = enumerate(map(replicated, loss.program.closed.in_avals))
    return tuple(spec if len(named.get(k, spec)) != len(spec) else named.get(k, spec) for k, spec in whole)


def _marks(shards: Shards, scope: Scope) -> Iterator[tuple[int, int, Spec]]:
    """Yields for each named value its function, its number among the arguments, and how it is split."""
    for place, eqn in enumerate(scope.jaxpr.eqns):
        if eqn.primitive is name_p and (mark := MARK.fullmatch(eqn.params["name"])):
            yield int(mark[2]), int(mark[1]), shards.spec(eqn.outvars[0], scope)
        for inner in scope.inner.get(place, {}).values():
            yield from _marks(shards, inner)


def _named(atoms: Sequence[Any], shardings: Sequence[Any]) -> dict[Any, NamedSharding]:
    pairs = zip(atoms, shardings, strict=False)
    return {a: each for a, each in pairs if isinstance(each, NamedSharding) and not isinstance(a, core.Literal)}


def _spec(var: Any, sharding: NamedSharding | None) -> Spec | None:
    return None if sharding is None else spec_of(sharding.spec, len(var.aval.shape))


def _mesh(closed: core.ClosedJaxpr, given: Sequence[Any]) -> AnyMesh | None:
    """Returns the mesh of a step, of devices rather than abstract; None without a mesh of several devices."""
    for sharding in given:
        if sharding is not None and not isinstance(sharding, NamedSharding):
            raise ProblemError(f"an argument is split by a {type(sharding).__name__}: must be a NamedSharding")
    typed = (getattr(aval.sharding, "mesh", None) for aval in closed.in_avals if hasattr(aval, "sharding"))
    meshes = [sharding.mesh for sharding in given if sharding is not None]
    several = [each for each in (*meshes, *typed, *_meshes(closed.jaxpr)) if each is not None and each.size > 1]
    shapes = [*dict.fromkeys(each.shape_tuple for each in several)]
    if len(shapes) > 1:
        first, second = (" x ".join(f"{size} {axis}" for axis, size in shape) for shape in shapes[:2])
        raise ProblemError(f"the step has shardings on meshes of {first} and of {second}: must be on one")
    return next(itertools.chain((each for each in several if isinstance(each, Mesh)), several), None)


def _meshes(jaxpr: core.Jaxpr) -> Iterator[AnyMesh]:
    """Yields the meshes of the shardings in a jaxpr."""
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves([*eqn.params.values()]):
            if isinstance(value, NamedSharding | Mesh | AbstractMesh):
                yield value.mesh if isinstance(value, NamedSharding) else value
        for inner in inner_jaxprs(eqn.params).values():
            yield from _meshes(getattr(inner, "jaxpr", inner))
