"""Graphs of programs that XLA compiles here: FLOPs as XLA counts them, schedules that XLA accepts, the command line."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphrl.cli import main
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.hlo.module import parse_module
from graphrl.graphs.readers.hlo.reader import HloProgram, read_hlo
from graphrl.graphs.readers.hlo.work import Flops


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def network(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(jnp.square(x))


def recurrence(x: jax.Array, weight: jax.Array) -> jax.Array:
    def step(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ weight + row)
        return state, state

    return jax.lax.scan(step, x[0], x)[1]


def branch(which: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.cond(which > 0, lambda: (x @ x).T @ x, lambda: jnp.sort(x, axis=0))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "training step": (jax.value_and_grad(network), ([shape(64, 64)] * 4, shape(32, 64))),
    "scan": (jax.grad(lambda x, w: recurrence(x, w).sum(), 1), (shape(16, 8, 32), shape(32, 32))),
    "conditional": (branch, (jax.ShapeDtypeStruct((), jnp.int32), shape(48, 48))),
}


@functools.cache
def compiled(name: str) -> Any:
    fn, args = PROGRAMS[name]
    return jax.jit(fn).lower(*args).compile()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_is_a_graph_in_the_order_of_its_schedule(name: str) -> None:
    executable = compiled(name)
    program = read_hlo(executable)
    source, target = program.graph.arrays.dependencies()
    assert (source < target).all()
    text = executable.as_text()
    assert text is not None
    assert read_hlo(text).graph == program.graph
    assert all(op.runtime > 0 for op in program.graph.ops)
    entry = program.module.entry
    assert {op.name for op in program.graph.ops} < entry.by_name.keys()


def _orders(graph: ComputationGraph) -> list[np.ndarray]:
    """Two distant orders: by depth below the sources, and by height above the sinks."""
    source, target = graph.arrays.dependencies()
    depth, height = np.zeros(len(graph.ops), int), np.zeros(len(graph.ops), int)
    for before, after in zip(source.tolist(), target.tolist(), strict=True):
        depth[after] = max(depth[after], depth[before] + 1)
    for before, after in zip(source[::-1].tolist(), target[::-1].tolist(), strict=True):
        height[before] = max(height[before], height[after] + 1)
    return [np.argsort(depth, kind="stable"), np.argsort(-height, kind="stable")]


def accepts(program: HloProgram, names: tuple[str, ...]) -> bool:
    """True if XLA accepts the names as the schedule of the entry."""
    from jaxlib import _hlo

    module = _hlo.HloModule.from_serialized_hlo_module_proto(program.module.message.SerializeToString())
    entry = next(c for c in module.computations() if c.name == program.module.entry.name)
    instructions = {i.name: i for i in entry.instructions()}
    schedule = module.schedule()
    try:
        schedule.set_sequence(entry, [instructions[name] for name in names])
        schedule.verify()
    except Exception:  # XLA's own exception, in a module without types
        return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_xla_takes_the_sequences(name: str) -> None:
    program = read_hlo(compiled(name))
    for order in (program.schedule, *_orders(program.graph)):
        names = program.sequence(order)
        assert set(names) == program.module.entry.by_name.keys()
        assert names[-1] == program.module.entry.root.name
        assert accepts(program, names)
    assert not accepts(program, names[::-1])


def crossed(x: jax.Array) -> jax.Array:
    sorts = [jnp.sort(x * factor, axis=0) for factor in (1.0, 2.0, 3.0, 4.0)]
    return jnp.stack([jnp.sum(a @ b) for a, b in zip(sorts, sorts[1:] + sorts[:1], strict=True)]).max()


def looped(x: jax.Array) -> jax.Array:
    def body(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return (jnp.sort(state[0], axis=0) @ state[0]).T, state[1] + 1

    return jax.lax.while_loop(lambda state: state[1] < 5, body, (x * 2, jnp.int32(0)))[0].sum()


@pytest.mark.parametrize("fn", [crossed, looped])
def test_the_peak_is_the_memory_that_xla_allocates(fn: Callable[..., Any]) -> None:
    """The program has a scalar result, whose buffer fits no temporary."""
    executable = jax.jit(fn).lower(shape(128, 128)).compile()
    program = read_hlo(executable)
    placement = np.zeros(len(program.graph.ops), int)
    costs = evaluate(program.graph, Problem(devices=1, objective="peak_memory"), placement, program.schedule)
    analysis = executable.memory_analysis()
    assert analysis is not None
    assert costs.peak_memory[0] == pytest.approx(analysis.temp_size_in_bytes, rel=1e-3)


def _flops(fn: Callable[..., Any], *args: Any) -> tuple[float, float]:
    """FLOPs of a compiled program by our count and by XLA's."""
    executable = jax.jit(fn).lower(*args).compile()
    module = parse_module(executable)
    analysis = executable.cost_analysis()
    assert analysis is not None
    return Flops(module).of_computation(module.entry.name), analysis.get("flops", 0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "SAME"},
        {"padding": "VALID", "window_strides": (2, 3)},
        {"padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)},
        {"padding": ((2, 1), (0, 3)), "lhs_dilation": (2, 3)},
        {"padding": "SAME", "feature_group_count": 4},
    ],
)
def test_flops_of_convolutions_are_those_of_xla(options: dict[str, Any]) -> None:
    groups = options.get("feature_group_count", 1)

    def convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        given = {"window_strides": (1, 1)} | options
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **given)

    ours, theirs = _flops(convolution, shape(2, 12, 15, 8), shape(3, 5, 8 // groups, 16))
    assert ours == theirs > 0


def test_flops_of_dots_are_those_of_xla() -> None:
    ours, theirs = _flops(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), shape(3, 8, 16), shape(3, 16, 5))
    assert ours == theirs == 2 * 3 * 8 * 16 * 5


def test_flops_of_reductions_and_elementwise_ops_are_those_of_xla() -> None:
    def fn(x: jax.Array) -> jax.Array:
        pooled = jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 2), (2, 2), "VALID")
        return jnp.maximum((pooled * pooled - pooled).sum(axis=0), 0.5)

    ours, theirs = _flops(fn, shape(32, 32))
    assert ours == theirs == 16 * 16 * (3 + 2) + 16 * 15 + 16


def test_transcendental_functions_and_sorts_count_too() -> None:
    assert _flops(jnp.tanh, shape(64))[0] == 64
    assert _flops(lambda x: jax.lax.sort(x), shape(64))[0] == 64 * 6
    assert _flops(jnp.fft.fft, jax.ShapeDtypeStruct((64,), jnp.complex64))[0] == 5 * 64 * 6


def test_a_known_loop_counts_all_its_trips() -> None:
    module = parse_module(compiled("scan"))
    product = 2 * 8 * 32 * 32  # of a step: one forward, two backward
    total = Flops(module).of_computation(module.entry.name)
    assert 16 * 3 * product <= total <= 1.2 * 16 * 3 * product


def test_the_command_line_plans_hlo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = compiled("training step").as_text()
    (tmp_path / "small.hlo").write_text(text)
    assert main(["optimize", str(tmp_path / "small.hlo"), "--method", "given", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["value"] > 0
    (tmp_path / "broken.hlo").write_text(text[:500])
    assert main(["optimize", str(tmp_path / "broken.hlo")]) == 1
    assert "broken.hlo: broken HLO text: " in capsys.readouterr().err
