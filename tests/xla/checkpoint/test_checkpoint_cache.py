"""Plans of `graphrl.checkpoint` outlive their process; broken plans and other settings cause a new search."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checkpoint_programs import WEIGHTS, X, assert_same, mlp, scanned

import graphrl
from graphrl.xla.checkpoint import plans
from graphrl.xla.checkpoint.plans import VERSION
from graphrl.xla.checkpoint.report import CheckpointReport

OPTIONS: dict[str, Any] = {"budget": 0.6, "seconds": 0.1}


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for plans."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "graphrl" / "checkpoints"


def planned(fn: Callable[..., Any] = scanned, *args: Any, **options: Any) -> CheckpointReport:
    """Report of a new wrapper, as in a new process."""
    return graphrl.checkpoint(fn, **(OPTIONS | options)).report(*(args or (WEIGHTS, X)))


def test_the_next_function_reads_the_plan(checkpoints: Path) -> None:
    first = planned()
    assert not first.from_cache
    (file,) = checkpoints.iterdir()
    again = planned()
    assert again.from_cache
    assert again.to_dict() | {"from_cache": False} == first.to_dict()
    assert "read from the plan cache" in str(again)
    assert "new search" in str(first)
    fn = graphrl.checkpoint(scanned, **OPTIONS)
    ours, theirs = (jax.jit(jax.grad(each, (0, 1)))(WEIGHTS, X) for each in (fn, scanned))
    assert_same(ours, theirs)
    assert fn.report().from_cache
    assert list(checkpoints.iterdir()) == [file]


def test_calls_of_one_function_plan_once(checkpoints: Path) -> None:
    fn = graphrl.checkpoint(scanned, **OPTIONS)
    first = fn.report(WEIGHTS, X)
    for file in checkpoints.iterdir():
        file.unlink()
    jax.eval_shape(fn, WEIGHTS + 1.0, X)
    assert fn.report() == first
    assert not list(checkpoints.iterdir())


def test_other_settings_plan_again(checkpoints: Path) -> None:
    settings = ({"budget": None, "slowdown": 0.1}, {"chip": "h200"}, {"offload": True}, {"seconds": 0.2}, {"seed": 1})
    for other in ({}, {"budget": 0.7}, *settings):
        assert not planned(mlp, **other).from_cache
        assert planned(mlp, **other).from_cache
    assert len(list(checkpoints.iterdir())) == 2 + len(settings)


def test_other_shapes_functions_and_arguments_plan_again(checkpoints: Path) -> None:
    planned(mlp)
    assert not planned(mlp, WEIGHTS, X[:8]).from_cache
    assert not planned(lambda weights, x: mlp(weights, x) * 2.0).from_cache
    by_x = graphrl.checkpoint(mlp, **OPTIONS)
    jax.grad(by_x, 1)(WEIGHTS, X)
    assert not by_x.report().from_cache
    assert planned(lambda *args: mlp(*args)).from_cache  # it computes the same


def test_lines_are_those_of_the_function_at_hand(checkpoints: Path) -> None:
    def first(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.square(jax.lax.scan(lambda h, w: (jnp.tanh(jnp.sin(h @ w)), None), x, weights)[0]).sum()

    def second(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.square(jax.lax.scan(lambda h, w: (jnp.tanh(jnp.sin(h @ w)), None), x, weights)[0]).sum()

    reports = [planned(fn) for fn in (first, second)]
    assert [(report.function, report.from_cache) for report in reports] == [("first", False), ("second", True)]
    lines = [{int(value.line.split(":")[1]) for value in report.values} for report in reports]
    begins = [fn.__code__.co_firstlineno for fn in (first, second)]
    assert lines == [{begins[0] + 1}, {begins[1] + 1}]
    bare = [[dataclasses.replace(value, line="") for value in report.values] for report in reports]
    assert bare[0] == bare[1]


def test_other_versions_plan_again(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(mlp)
    changes = (plans, "VERSION", VERSION + 1), (plans, "installed_version", lambda: "0"), (jax, "__version__", "0")
    for where, name, other in changes:
        monkeypatch.setattr(where, name, other)
        assert not planned(mlp).from_cache
        assert planned(mlp).from_cache
    assert len(list(checkpoints.iterdir())) == 4


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(f'"version": {VERSION}', f'"version": {VERSION - 1}'),
        lambda text: text.replace('"fingerprint": "', '"fingerprint": "0'),
        lambda text: re.sub(r'"first": \d+', '"first": 1000', text),
        lambda text: re.sub(r'"place": \[\s*\d+', '"place": [0, 0', text),
        lambda text: re.sub(r'"place": \[[^]]*', '"place": [', text),
    ],
)
def test_broken_files_plan_again(spoil: Callable[[str], str], checkpoints: Path) -> None:
    planned(mlp)
    (file,) = checkpoints.iterdir()
    text = file.read_text()
    assert spoil(text) != text
    file.write_text(spoil(text))
    assert not planned(mlp).from_cache
    assert planned(mlp).from_cache


def test_without_the_cache_nothing_is_read_or_written(checkpoints: Path) -> None:
    assert not planned(mlp, cache=False).from_cache
    assert not checkpoints.exists()
    planned(mlp)
    assert not planned(mlp, cache=False).from_cache


def test_a_folder_that_cannot_be_written_is_a_warning(checkpoints: Path) -> None:
    checkpoints.parent.mkdir()
    checkpoints.write_text("a file in the way")
    with pytest.warns(UserWarning, match="graphrl: the plan cannot be stored for the next process: "):
        report = planned(mlp)
    assert not report.from_cache
    assert report.planned.kept_bytes <= 0.6 * report.plain.kept_bytes


def test_budgets_that_cannot_be_met_are_not_kept(checkpoints: Path) -> None:
    for _ in range(2):
        with pytest.raises(graphrl.GraphrlError, match=r"budget is 0\.0: the least found is"):
            planned(lambda weights, x: jnp.square(scanned(weights, x)), budget=0.0)
    assert not checkpoints.exists()
