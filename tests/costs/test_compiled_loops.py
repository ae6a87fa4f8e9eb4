"""Decoding loops as XLA compiles them: state is updated in place, and trip counts are static where that matters.

XLA copies an array that a step reads after it wrote it, which costs more than all the work of the step (512 ops: 74
instead of 31 us). A loop whose trip count is known only at run time makes a GPU's host wait for every step.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_modules import (
    BLOCKS,
    GRAPHS,
    LANES,
    SIZES,
    SLOTS,
    Instruction,
    L,
    Module,
    padded,
)
from device_graphs import random_decisions
from fusion_graphs import chain_graph
from jax import lax

from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.decode import schedule
from graphrl.costs.device.evaluate import evaluate, node_seconds
from graphrl.costs.device.lanes import implied
from graphrl.costs.fusion.device import fuse
from graphrl.costs.fusion.device import pad as pad_fusion
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import PaddedGraph
from graphrl.solvers.chromosomes import brkga


def compile_evaluate(problem: Problem, form: str, **options: bool) -> Module:
    decisions = random_decisions(np.random.default_rng(0), GRAPHS, LANES, problem.devices, SIZES)
    jitted = jax.jit(functools.partial(evaluate, problem=DeviceProblem.of(problem), form=form, **options))  # type: ignore[arg-type]
    return Module(jitted.lower(padded(), decisions))


def the_decoding_loop(module: Module) -> Instruction:
    """The only loop that carries the slots of all lanes."""
    (loop,) = module.loops(f"s32[{SLOTS * L}]")
    return loop


@pytest.mark.parametrize(
    ("transfer", "devices", "makespan"),
    [("rendezvous", 1, True), ("rendezvous", 2, True), ("rendezvous", 2, False), ("link", 3, True)],  # free: in BRKGA
)
def test_a_step_writes_its_state_in_place(transfer: str, devices: int, makespan: bool) -> None:
    module = compile_evaluate(Problem(devices=devices, transfer=transfer), "rows", makespan=makespan)  # type: ignore[arg-type]
    assert module.made_anew(the_decoding_loop(module), BLOCKS * L) == []


@pytest.mark.parametrize("objective", ["peak_memory", "makespan"])
def test_a_step_writes_its_state_in_place_inside_brkga(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrl.costs.device.evaluate.is_compiled", lambda: False)
    problem = DeviceProblem.of(Problem(objective, devices=2, transfer="free"))  # type: ignore[arg-type]
    parameters = brkga.Parameters(population=LANES + 5, elites=5, mutants=5)
    graph = padded()
    state = brkga.init(jax.random.split(jax.random.key(0), GRAPHS), graph, problem, parameters)
    evolve = jax.jit(brkga.evolve, static_argnames=("parameters", "generations"))
    module = Module(evolve.lower(state, graph, problem, parameters, 4))
    assert module.made_anew(the_decoding_loop(module), BLOCKS * L) == []


@pytest.mark.parametrize("lanes", [(), (3,)])
def test_a_turn_of_fusion_writes_its_rows_in_place(lanes: tuple[int, ...]) -> None:
    problem = pad_fusion(fusion_problem(chain_graph("mul " * 200)))
    turns = jax.vmap(fuse, (None, 0)) if lanes else fuse
    module = Module(jax.jit(turns).lower(problem, jnp.ones((*lanes, len(problem.alone)), jnp.int32)))
    rows = ",".join(map(str, (*lanes, len(problem.alone) + 1, problem.max_ops)))
    (scan,) = (loop for loop in module.loops(f"s32[{rows}]") if "known_trip_count" in loop.text)
    assert module.made_anew(scan, math.prod(lanes) * len(problem.alone) * problem.max_arguments) == []


# The check itself must be able to fail.


def read_after_write(state: jax.Array, where: jax.Array) -> jax.Array:
    """Reads the old state at an index from the new state."""
    written = state.at[where].set(1)
    return written.at[where].add(state[written[where + 1]])


def rewritten(state: jax.Array, where: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(state.shape[0]) == where[0], 1, state)


def in_place(state: jax.Array, where: jax.Array) -> jax.Array:
    return state.at[where].add(state[where] + 1)


@pytest.mark.parametrize(("step", "bad"), [(read_after_write, True), (rewritten, True), (in_place, False)])
def test_the_check_finds_bad_steps(step: Callable[[jax.Array, jax.Array], jax.Array], bad: bool) -> None:
    @jax.jit
    def run(state: jax.Array, trips: int) -> jax.Array:
        return lax.fori_loop(0, trips, lambda i, state: step(state, jnp.arange(4) * 8 + i), state)

    module = Module(run.lower(jnp.zeros(4096, jnp.int32), 9))
    (loop,) = module.loops("s32[4096]")
    assert bool(module.made_anew(loop, 4096)) == bad


# Trip counts


def test_the_dense_form_has_static_trip_counts() -> None:
    problem = Problem(devices=2, transfer="rendezvous")
    module = compile_evaluate(problem, "dense")
    (loop,) = module.loops(f"s16[{L},{SIZES.slots}]")
    assert '"known_trip_count":{"n":"41"}' in loop.text  # 8 steps each: 160 ops and 168 transfers
    assert all("known_trip_count" in every.text for every in module.loops(""))


def test_rows_with_fixed_trips_have_a_static_trip_count() -> None:
    problem = DeviceProblem.of(Problem(devices=2))

    @jax.jit
    def decoded(graph: PaddedGraph, decisions: Decisions) -> jax.Array:
        lanes = implied(graph, decisions, 2)
        durations = node_seconds(graph, problem)
        return schedule(graph, lanes, 2, "free", durations, fixed_trips=True).makespan

    decisions = random_decisions(np.random.default_rng(0), GRAPHS, LANES, 2, SIZES)
    module = Module(decoded.lower(padded(), decisions))
    assert "known_trip_count" in the_decoding_loop(module).text
