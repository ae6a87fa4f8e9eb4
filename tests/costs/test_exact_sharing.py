"""The exact host twin where tensors share buffers: aliases and reuse."""

import dataclasses

from exact_peaks import peaks

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def chain(*outputs: Tensor, kept: tuple[str, ...] = ()) -> ComputationGraph:
    """op0 writes the first tensor, op i reads tensor i - 1 and writes tensor i; a last op reads the last."""
    ops = [
        Op(f"op{i}", inputs=(outputs[i - 1].name,) if i else (), outputs=(tensor,)) for i, tensor in enumerate(outputs)
    ]
    return ComputationGraph("chain", (*ops, Op("end", inputs=(outputs[-1].name,))), (), kept)


def test_an_alias_has_no_bytes_and_keeps_its_buffer_alive() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"), Tensor("u", 3))
    costs = exact.evaluate(graph, Problem(), [0] * 4, [0, 1, 2, 3])
    # t: 5; the view adds nothing; u: 3, then the view's use frees t's buffer; end frees u
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [8, 3], [3, 0]]


def test_a_kept_alias_keeps_its_buffer_for_ever() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"), kept=("view",))
    assert exact.evaluate(graph, Problem(), [0] * 3, [0, 1, 2]).memory[0][-1].tolist() == [5, 5]


def test_an_alias_of_a_copy_lives_in_the_copy() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1, 1], [0, 3 + 0 * 2 + 1, 1, 2])
    assert costs.memory[0].tolist() == [[5, 5], [5, 0], [0, 0], [0, 0]]
    assert costs.memory[1].tolist() == [[0, 0], [5, 5], [5, 5], [5, 0]]  # the copy outlives its own last use


def test_a_transfer_of_an_alias_is_a_buffer_of_its_own() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 4, alias="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 0, 1], [0, 1, 3 + 1 * 2 + 1, 2])
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [5, 0], [0, 0]]
    assert costs.memory[1].tolist() == [[0, 0], [0, 0], [4, 4], [4, 0]]


def test_an_alias_of_an_external_input_is_free_at_home() -> None:
    ops = (Op("a", inputs=("x",), outputs=(Tensor("view", 7, alias="x"),)), Op("b", inputs=("view",)))
    graph = ComputationGraph("external", ops, (Tensor("x", 7),))
    assert peaks(graph, [0, 0], [0, 1]) == (0,)
    assert peaks(graph, [0, 1], [0, 3, 1]) == (0, 7)


def test_reuse_takes_over_the_input_at_its_last_use() -> None:
    graph = chain(Tensor("t", 5), Tensor("u", 3, reuses="t"), Tensor("v", 3, reuses="u"))
    # one buffer of 5 bytes all along, although u and v need 3
    assert exact.evaluate(graph, Problem(), [0] * 4, [0, 1, 2, 3]).memory[0].tolist() == [[5, 5]] * 3 + [[5, 0]]


def test_no_reuse_before_the_last_use_or_of_a_kept_or_external_buffer() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("b", inputs=("t",), outputs=(Tensor("u", 3, reuses="t"),)),
        Op("c", inputs=("t",)),
        Op("d", inputs=("u",)),
    )
    graph = ComputationGraph("two readers", ops)
    assert peaks(graph, [0] * 4, [0, 1, 2, 3]) == (8,)  # c still needs t
    assert peaks(graph, [0] * 4, [0, 2, 1, 3]) == (5,)
    assert peaks(dataclasses.replace(graph, outputs=("t",)), [0] * 4, [0, 2, 1, 3]) == (8,)
    external = (Op("a", inputs=("x",), outputs=(Tensor("t", 3, reuses="x"),)),)
    assert peaks(ComputationGraph("external", external, (Tensor("x", 5),)), [0], [0]) == (3,)


def test_reuse_of_a_transferred_copy() -> None:
    graph = chain(Tensor("t", 5), Tensor("u", 5, reuses="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1, 1], [0, 3 + 0 * 2 + 1, 1, 2])
    assert costs.peak_memory == (5, 5)


def test_two_outputs_that_want_one_buffer_first_wins() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("view", inputs=("t",), outputs=(Tensor("w", 5, alias="t"),)),
        Op("b", inputs=("t", "w"), outputs=(Tensor("u", 2, reuses="w"), Tensor("v", 3, reuses="t"))),
        Op("c", inputs=("u", "v")),
    )
    assert peaks(ComputationGraph("pair", ops), [0] * 4, [0, 1, 2, 3]) == (8,)  # u in t's 5 bytes, v in 3 of its own


def test_reuse_waits_for_the_aliases_of_the_input() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("view", inputs=("t",), outputs=(Tensor("w", 5, alias="t"),)),
        Op("b", inputs=("t",), outputs=(Tensor("u", 5, reuses="t"),)),
        Op("c", inputs=("w",)),
        Op("d", inputs=("u",)),
    )
    graph = ComputationGraph("view", ops)
    assert peaks(graph, [0] * 5, [0, 1, 2, 3, 4]) == (10,)  # w is read after b
    assert peaks(graph, [0] * 5, [0, 1, 3, 2, 4]) == (5,)
