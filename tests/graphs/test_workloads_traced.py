"""The code of GO's workloads at tiny sizes: it trains, and its graphs have the documented properties."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reproduce import workloads
from reproduce.models.go_layers import Model, Weights
from reproduce.models.go_sequences import gnmt, rnnlm, transformer_xl, wavenet
from reproduce.workloads import ARCHITECTURES, numbered, training_step

from graphrl.costs.exact import decode, evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.datasets.zoo import storage

TINY = {
    "rnnlm": rnnlm(2, units=8, steps=3, batch=2, words=11),
    "gnmt": gnmt(3, units=8, steps=3, batch=2, words=11),
    "transformer-xl": transformer_xl(2, width=8, heads=2, inner=12, length=4, batch=2, characters=7),
    "wavenet": wavenet(1, 3, samples=16, batch=2, channels=4, skips=6),
}


def values(model: Model) -> dict[str, Any]:
    """A random batch."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, model.classes, shape.shape, dtype=np.int32)
        if shape.dtype == np.int32
        else rng.standard_normal(shape.shape, dtype=np.float32)
        for name, shape in model.batch.items()
    }


def initial(model: Model, seed: int) -> dict[str, Any]:
    """Parameters: normal over the square root of the fan-in; scales 1, biases 0."""
    rng = np.random.default_rng(seed)

    def of(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.full(shape, name.endswith("scale"), np.float32)
        return rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]), dtype=np.float32)

    return {name: jnp.asarray(of(name, shape.shape)) for name, shape in model.parameters().items()}


@pytest.mark.parametrize("model", TINY.values(), ids=TINY)
def test_training_lowers_the_loss(model: Model) -> None:
    """The loss starts near the logarithm of the number of classes, and falls as its gradient predicts."""
    parameters, batch = initial(model, 0), values(model)
    step = jax.jit(training_step(model))
    losses = []
    for _ in range(3):
        parameters, loss, _ = step(parameters, batch)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses[0] == pytest.approx(np.log(model.classes), rel=0.8)
    assert losses[0] > losses[1] > losses[2]


def test_numbers_change_no_value() -> None:
    model = TINY["transformer-xl"]
    parameters, batch = initial(model, 1), values(model)
    plain, marked = (jax.jit(training_step(model, *mark))(parameters, batch) for mark in ((), (numbered,)))
    assert plain[0].keys() == marked[0].keys()
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(marked), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [("transformer-xl", "characters"), ("wavenet", "samples"), ("rnnlm", "words"), ("gnmt", "target")],
)
def test_outputs_see_nothing_that_lies_ahead(model: str, inputs: str) -> None:
    """The change of the loss by another first label depends on the first row's logits alone."""
    loss, batch = TINY[model].loss, values(TINY[model])
    weights = Weights(jax.tree.map(lambda x: 3 * x, initial(TINY[model], 0)))
    one, two = batch["labels"].copy(), batch["labels"].copy()
    one[0], two[0] = 0, 1

    def first_row(**changed: Any) -> float:
        losses = [loss(weights, {**batch, **changed, "labels": labels})[0] for labels in (one, two)]
        return float(losses[0] - losses[1])

    later, now = batch[inputs].copy(), batch[inputs].copy()
    later[1:] = (later[1:] + 1) % TINY[model].classes
    now[0] = (now[0] + 1) % TINY[model].classes
    assert first_row(**{inputs: later}) == pytest.approx(first_row(), abs=1e-5)
    assert first_row(**{inputs: now}) != pytest.approx(first_row(), abs=1e-4)
    if model == "transformer-xl":
        assert first_row(memory0=batch["memory0"] + 1) != pytest.approx(first_row(), abs=1e-4)


@pytest.mark.parametrize("model", TINY.values(), ids=TINY)
def test_graphs_hold_every_parameter_once_and_update_it_in_place(model: Model) -> None:
    graph, groups = workloads.traced(model, "tiny")
    a, shapes = graph.arrays, model.parameters()
    ops = {op.name: op for op in graph.ops}
    assert a.weight_bytes.sum() == sum(4 * np.prod(shape.shape) for shape in shapes.values())
    assert [op.name for op in graph.ops if op.weight_bytes] == [f"variable/{name}" for name in sorted(shapes)]
    assert len(groups) == a.num_ops
    for name in shapes:
        variable = ops[f"variable/{name}"]
        readers = [op.name for op in graph.ops if variable.outputs[0].name in op.inputs]
        (update,) = (op for op in graph.ops if variable.outputs[0].name in {t.alias for t in op.outputs})
        assert update.name.startswith(f"update/{name}/sub")
        place, before = {op.name: i for i, op in enumerate(graph.ops)}, a.ancestors()
        assert all(before[place[update.name], place[reader]] for reader in readers if reader != update.name)
        assert groups[place[variable.name]] == groups[place[update.name]]


def test_parameters_stay_where_their_variables_stand() -> None:
    """An op on another device gets a copy of the parameter: seconds on the way, and room on its device."""
    graph, _ = workloads.traced(TINY["rnnlm"], "tiny")
    a, n = graph.arrays, len(graph.ops)
    placement = np.zeros(n, int)
    reader = next(i for i, op in enumerate(graph.ops) if op.type == "dot_general" and "softmax" in op.name)
    placement[reader] = 1
    (parameter,) = (name for name in graph.ops[reader].inputs if name.startswith("variable/"))
    size = int(a.tensor_bytes[graph.tensor_names.index(parameter)])
    problem = Problem("makespan", 2, "link", bandwidth=1.0, resident_weights=True)
    order = decode(graph, problem, placement, np.zeros(n), np.zeros((a.num_tensors, 2)))
    costs = evaluate(graph, problem, placement, order)
    assert costs.makespan > size
    assert costs.peak_memory[1] >= size
    assert costs.peak_memory[0] >= a.weight_bytes.sum()


def test_the_script_writes_what_is_shipped(tmp_path: Path) -> None:
    """Written by the same JAX: equal to the byte except for the date and versions."""
    path = workloads.write("transformer-xl-2", tmp_path)
    shipped = storage.read_program(go.DATA / path.name, 16)
    traced = storage.read_program(path, 16)
    assert traced.colocation is not None
    if traced.versions == shipped.versions:
        assert traced.graph == shipped.graph
        np.testing.assert_array_equal(traced.colocation, shipped.colocation)


def test_every_setting_has_an_architecture() -> None:
    assert {setting.architecture for setting in go.WORKLOADS.values()} == ARCHITECTURES.keys()
