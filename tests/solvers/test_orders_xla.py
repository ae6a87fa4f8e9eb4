"""XLA's memory schedulers: true to their rules, and to XLA itself."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rule_orders import names, program

from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules import compilers


def test_xla_list_on_the_example_of_its_source() -> None:
    """The comment in hlo_memory_scheduler.cc: "The sequence it creates will be: A D E F B C G", of two equals either
    first. Sizes x 100, so that none is a scalar.
    """
    assert (
        names("xla-list", program("A 100; B 200 A; C 100 B; D 100 A; E 100 A; F 200 D E; G 100 C F")) == "A E D F B C G"
    )


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a 100; b 100; c 100; d 9 a b c", "c b a d"),  # equal: the last one in
        ("a 100; b 90; c 100; d 9 a b c", "b c a d"),  # fewest bytes defined
        ("a 100; b 100; u 50 a; v 50 a; w 9 b u v", "a v u b w"),  # more users first; u rises when v has run
        ("a 100; x 8 a; y 60 a; z 9 x y", "a x y z"),  # 8 bytes are a scalar, first though x frees nothing
        ("a 100; x 9 a; y 0 a; z 9 x y", "a y x z"),  # 9 and 0 bytes are not
        ("a 100; b 100 !c; c 100; d 9 a b c", "c b a d"),  # b, ready by control alone, is the last one in
    ],
)
def test_xla_list(text: str, order: str) -> None:
    assert names("xla-list", program(text)) == order


def test_xla_list_frees_no_output_and_lets_it_count_as_a_user() -> None:
    text = "a 100; k 50 a; b 50 a; c 60 k; d 60 b"
    assert names("xla-list", program(text)) == "a b k c d"
    # Kept, k has a second user: it goes before b. c frees nothing, d frees b's 50 bytes.
    assert names("xla-list", program(text, "k")) == "a k b d c"


def test_xla_list_enters_an_op_anew_when_its_priority_rises() -> None:
    """p and q become last users when r has run, p by s and q by t: s stands first among r's operands."""
    graph = program("s 100; t 100; r 9 s t; p 160 s; q 160 t; z 9 p q r")
    assert names("xla-list", graph) == "t s r q p z"
    swapped = program("s 100; t 100; r 9 t s; p 160 s; q 160 t; z 9 p q r")
    assert names("xla-list", swapped) == "t s r p q z"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a 10; b 10; c 10; d 9 c a b", "c a b d"),  # operands as named
        ("a 10; b 10; c 10; d 9 c a !b; e 9 d b", "b c a d e"),  # control predecessors before them
        ("a 10; b 10; c 10; d 9 c !a !b; e 9 d a b", "b a c d e"),  # the last named first
        ("a 10; b 10; c 10; d 9 c !a !b", "a b c d"),  # a and b have no users: they are roots
        ("a 10; b 10 a; c 10; d 10 c", "a b c d"),  # roots by index
    ],
)
def test_xla_post_order(text: str, order: str) -> None:
    assert names("xla-postorder", program(text)) == order


def test_xla_root_comes_last() -> None:
    graph = program("k 10; l 10; dead 10; m 10", "m", "k")
    assert names("xla-postorder", graph) == "l dead m k"
    assert names("xla-dfs", program("k 10; l 10; dead 10; m 20", "k", "m")) == "l dead m k"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a 10; b 10; c 10; x 9 c; y 9 c; d 9 a b x y", "c x y a b d"),  # c's extra user counts for x and y
        ("a 10; b 30; c 20; d 9 a b c", "b c a d"),  # then most bytes
        ("a 10; b 30 a; c 35; d 9 c b", "a b c d"),  # with all that is above: 40
        ("b 10; a 10; d 9 b a", "a b d"),  # then the least name
    ],
)
def test_xla_depth_first(text: str, order: str) -> None:
    assert names("xla-dfs", program(text)) == order


@pytest.mark.parametrize("seed", range(3))
def test_xla_itself_gives_the_same_orders(seed: int) -> None:
    """Each op is a custom call, which XLA neither fuses nor sizes anew. Its CPU compiler's memory-optimised order is
    that of its depth-first scheduler; it prints a module that is not scheduled in post-order.
    """
    graph = layered(60, seed, Layered(parameter_cost=False))

    def run() -> jax.Array:
        value: dict[str, jax.Array] = {}
        for i in graph.arrays.topological.tolist():
            op = graph.ops[i]
            shape = jax.ShapeDtypeStruct((op.outputs[0].bytes,), jnp.uint8)
            call = jax.ffi.ffi_call("xla_ffi_python_cpu_callback", shape)
            value[op.outputs[0].name] = call(*(value[name] for name in op.inputs), index=np.uint64(i))
        return value[op.outputs[0].name]

    lowered = jax.jit(run).lower()
    options: dict[str, str | bool] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    scheduled = str(lowered.compile(compiler_options=options).as_text())
    calls = re.findall(r"%([\w.-]+) = .*custom-call\(.*index = (\d+)", scheduled)
    name = {int(index): name for name, index in calls}
    renamed = tuple(dataclasses.replace(op, name=name[i]) for i, op in enumerate(graph.ops))
    graph = dataclasses.replace(graph, ops=renamed)  # XLA breaks ties by its names
    assert [int(index) for _, index in calls] == compilers.xla_depth_first(Flow(graph))
    unscheduled = lowered.as_text("hlo")
    assert [int(i) for i in re.findall(r"index = (\d+)", unscheduled)] == compilers.xla_post_order(Flow(graph))
