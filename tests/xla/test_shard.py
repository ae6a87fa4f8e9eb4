"""`graphrl.shard`: strategies of equations, costs and memory of problems from JAX, values of split functions."""

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from processes import run_python
from reproduce.sharding.from_jax import sent

import graphrl
from graphrl.errors import ProblemError
from graphrl.graphs.roofline import Interconnect
from graphrl.xla.checkpoint.factors import factors_of
from graphrl.xla.checkpoint.shards import Layout
from graphrl.xla.shard.program import UNIT, ties
from graphrl.xla.shard.strategies import Work, specs, strategies

CHIP = graphrl.Chip("round", 1e12, 1e12)
LINK = Interconnect(0.0, 1e9, "a test")
MESH = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,))
D: tuple[str, ...] = ("d",)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def layout(**sizes: int) -> Layout:
    return Layout(sizes, dict.fromkeys(sizes, LINK), None)


def listed(function: Any, *args: Any, on: Layout) -> set[Any]:
    """The strategies of a function's last equation: how it reads its operands and leaves its results."""
    eqn = jax.make_jaxpr(function)(*args).jaxpr.eqns[-1]
    atoms = (*eqn.invars, *eqn.outvars)
    work = Work(1.0, (0.0,) * len(eqn.invars), (0.0,))
    options = strategies(eqn, factors_of(eqn), [a.aval for a in atoms], len(eqn.invars), work, on, CHIP)
    assert not any(itertools.chain(*options[0].operands, *options[0].results))  # the first is unsplit
    return {(*each.operands, *each.results) for each in options}


def test_products_are_split_by_rows_columns_and_the_contracted_dimension() -> None:
    whole, rows, columns = ((), ()), (D, ()), ((), D)
    assert listed(jnp.dot, shape(8, 4), shape(4, 6), on=layout(d=2)) == {
        (whole, whole, whole),
        (rows, whole, rows),
        (whole, columns, columns),
        (columns, rows, whole),  # sums by an all-reduce,
        (columns, rows, rows),  # or by a reduce-scatter over rows
        (columns, rows, columns),  # or columns
    }
    assert (columns, rows, columns) not in listed(jnp.dot, shape(8, 4), shape(4, 3), on=layout(d=2))  # 3 columns


def test_two_axes_split_two_dimensions_or_one() -> None:
    pairs = listed(jnp.tanh, shape(8, 6), on=layout(a=2, b=4))
    assert pairs == {(spec, spec) for spec in specs(jax.core.ShapedArray((8, 6), jnp.float32), layout(a=2, b=4))}
    assert {spec for spec, _ in pairs} == {
        ((), ()), (("a",), ()), (("b",), ()), (("a", "b"), ()), ((), ("a",)), (("b",), ("a",)),
    }  # fmt: skip


CASES: list[tuple[Any, tuple[Any, ...], set[Any]]] = [
    (lambda x: x.sum(0), (shape(4, 6),), {(((), D), (D,)), ((D, ()), ((),)), ((D, ()), (D,))}),
    (lambda x: x.reshape(4, 3, 2), (shape(4, 6),), {((D, ()), (D, (), ()))}),
    (lambda x: x.T, (shape(4, 6),), {((D, ()), ((), D)), (((), D), (D, ()))}),
    (lambda x: jax.lax.cumsum(x, 1), (shape(4, 6),), {((D, ()), (D, ()))}),
    (lambda x: jax.lax.slice(x, (0, 0), (4, 4)), (shape(4, 6),), {((D, ()), (D, ()))}),
    (lambda x: jax.lax.sort(x, dimension=0), (shape(4, 6),), {(((), D), ((), D))}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "expected"), CASES)
def test_strategies_of_other_equations(function: Any, args: Any, expected: Any) -> None:
    options = listed(function, *args, on=layout(d=2))
    assert {each for each in options if any(itertools.chain(*each))} == expected


def test_costs_are_work_and_collectives() -> None:
    split = problem(lambda x, w: (x @ w).sum(0), shape(1000, 100), shape(100, 100))
    names = [node.name for node in split.program.nodes]
    assert names == ["argument", "argument", "dot_general", "reduce_sum"]
    _, _, product, total = split.program.nodes

    def plan(x: Any, w: Any, product_reads: Any, sum_reads: Any) -> Any:
        chosen = [
            [s.results[0] for s in node.strategies].index(spec)
            for node, spec in zip(split.program.nodes[:2], (x, w), strict=True)
        ]
        chosen.append([s.operands[0] for s in product.strategies].index(product_reads))
        chosen.append([s.operands[0] for s in total.strategies].index(sum_reads))
        return split.problem.total_cost(np.array(chosen)) * UNIT

    whole, rows = ((), ()), (D, ())
    alone = 1000 * 100 * 100 * 2 / 1e12 + 100 * 1000 * 4 / 1e12
    assert plan(whole, whole, whole, whole) == pytest.approx(alone, rel=0.02)
    gather = 1000 * 100 * 4 / 2 / 1e9  # each device sends its half
    assert plan(rows, whole, whole, whole) == pytest.approx(alone + gather, rel=0.02)
    added = 2 * 100 * 4 / 2 / 1e9  # an all-reduce of the sums
    assert plan(rows, whole, rows, rows) == pytest.approx(alone / 2 + added, rel=0.02)


def problem(function: Any, *args: Any, memory: Any = None) -> graphrl.ShardableFunction:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    return graphrl.shard_problem(function, mesh, *args, chip=CHIP, link=LINK, memory=memory)


def test_memory_is_that_of_shards_while_values_are_read() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        y = x @ w
        return (y @ w.T) @ y  # the transpose takes no memory

    split = problem(function, shape(10, 10), shape(10, 100), memory="1MiB")
    assert split.problem.limit == 2**20
    whole = np.zeros(len(split.program.nodes), int)
    at_end = 400 + 4000 + 4000 + 400 + 4000  # both arguments, y, the second product, and the third
    assert split.problem.peak(whole) == at_end
    assert split.problem.memory(whole).max() == at_end > split.problem.memory(whole)[0] == 400 + 4000
    halves = [next(k for k, s in enumerate(n.strategies) if all(map(any, s.results))) for n in split.program.nodes]
    assert split.problem.peak(np.array(halves)) == at_end / 2


def test_results_are_split_as_the_arguments_of_their_type() -> None:
    a, b, s = (jax.core.ShapedArray(each, jnp.float32) for each in ((4, 4), (2, 4), ()))
    assert ties([a, b, a, s], [s, a, b, a]) == [None, 0, 1, 2]
    assert ties([a, b], [b, a, a]) == [1, 0, None]

    step = graphrl.shard(
        lambda w, x: (jnp.tanh(x @ w).sum(), w - x.T @ x), Mesh(np.array(jax.devices()[:2]), ("d",)),
        shape(4, 4), shape(1000, 4), chip=graphrl.Chip("slow", 1e3, 1e3), link=LINK, seconds=0.2,
    )  # fmt: skip
    assert step.out_shardings[1] == step.in_shardings[0]
    assert step.in_shardings[1].spec == P("d", None)
    assert "args[1]: P('d', None)" in str(step.report)


def test_what_is_not_known_is_not_split_and_said() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x * 2, x)

    split = problem(function, shape(4, 4))
    assert dict(split.program.unknown) == {"while": 1}
    own = split.apply([1] + [0] * (len(split.program.nodes) - 1))
    assert "not split: while (1)" in str(own.report)
    assert own.report.collectives == {"all_gather": 32.0}


def test_values_on_eight_devices_are_those_of_one(tmp_path: Path) -> None:
    done = run_python(tmp_path, str(Path(__file__).parents[1] / "helpers" / "sharded_functions.py"))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures) == {"attention", "scan", "step"}
    for name, each in figures.items():
        assert each["difference"] <= 1e-10, name
        assert each["share"] < 0.3, name


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (None, {}, "mesh is a NoneType: must be a jax.sharding.Mesh"),
        (MESH, {"memory": 0}, "memory is 0: must be a number of bytes"),
        (AbstractMesh((1,), ("d",), axis_types=(AxisType.Auto,)), {}, "mesh has one device: must have several"),
        (MESH, {"link": {"e": "pcie-5"}}, "link has mesh axis 'e': the mesh has d"),
    ],
)
def test_wrong_input_is_refused_in_one_line(mesh: Any, options: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        graphrl.shard(jnp.sin, mesh, shape(4, 4), **options)


def test_a_limit_that_nothing_fits_is_refused() -> None:
    with pytest.raises(ProblemError):
        graphrl.shard(jnp.sin, MESH, shape(4, 4), memory=16, seconds=0.2)


def network(weights: Any, x: jax.Array) -> jax.Array:
    for up, down in weights:
        x = jnp.tanh(x @ up) @ down
    return jnp.square(x).mean()


TALL = [(shape(64, 128), shape(128, 64))] * 3, shape(512, 64)


def verified(**options: Any) -> graphrl.ShardedFunction:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    options = {"chip": CHIP, "link": LINK, "seconds": 0.2, "verify": True, **options}
    return graphrl.shard(jax.value_and_grad(network), mesh, *TALL, **options)


def compiled_bytes(own: graphrl.ShardedFunction) -> int:
    args = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), TALL, own.in_shardings)
    memory: Any = own.jitted.lower(*args).compile().memory_analysis()
    return int(memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes)


def test_limits_are_kept_by_the_figure_of_xla() -> None:
    free = verified()
    assert free.report.compiled_bytes == compiled_bytes(free) > free.report.peak_bytes
    assert free.report.compilations == 1
    assert "by XLA" in str(free.report)
    assert free.report.compiled_bytes is not None
    limit = (free.report.compiled_bytes + free.report.peak_bytes) // 2  # kept by the estimate alone
    own = verified(memory=limit)
    assert own.report.limit == limit
    assert own.report.compilations > 1
    assert own.report.compiled_bytes == compiled_bytes(own) <= limit
    with pytest.raises(
        ProblemError, match=r"^memory is .*: the least reached in \d compilations? is .* by XLA$"
    ) as raised:
        verified(memory=limit // 2)
    assert "\n" not in str(raised.value)


def test_verification_takes_a_function_that_compiles() -> None:
    with pytest.raises(ProblemError, match="verify is 3: must be True, False or a function that compiles"):
        verified(verify=3)
    with pytest.raises(ProblemError, match=r"verify gave a str: must be a jax.stages.Compiled"):
        verified(verify=lambda function, *args: "text")
    names = list[str]()

    def compiler(function: Any, *args: Any) -> Any:
        names.append(function.__name__)
        return function.lower(*args).compile()

    assert verified(verify=compiler).report.compilations == len(names) == 1


def test_bytes_of_collectives_are_read_from_modules() -> None:
    module = """
  %all-reduce.1 = (f32[16,2]{1,0}, f32[4]{0}) all-reduce(%a, %b), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %gather = (bf16[2,8]{1,0}, bf16[16,8]{1,0}) all-gather-start(%c), replica_groups=[1,8]<=[8], dimensions={0}
  %done = bf16[16,8]{1,0} all-gather-done(%gather)
  ROOT %scatter = f32[2,8]{1,0} reduce-scatter(%d), replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
  %exchange = f32[2,8]{1,0} all-to-all(%e), replica_groups=[4,2]<=[8], dimensions={1}
"""
    assert sent(module) == {
        "all-reduce": 2 * 4 * (32 + 4) * 3 / 4, "all-gather": 2 * 128 * 7 / 8, "reduce-scatter": 4 * 128 * 7 / 8,
        "all-to-all": 4 * 16 / 2, "collective-permute": 0.0,
    }  # fmt: skip
