"""A program that uses graphrl where the libraries of its extras cannot be imported.

`python without_extras.py '["onnx", ...]'` in a folder with `tiny.json`, `model.onnx` and `module.hlo` runs everything
that needs no extra, then each feature that needs one, and prints the exit codes and standard errors of the latter as
JSON.
"""

import contextlib
import importlib.abc
import io
import json
import sys
from collections.abc import Sequence

from tiny_regal import REGAL

FAILING = {
    "onnx": ["optimize", "model.onnx"],
    "psutil": ["optimize", "module.hlo"],
    "distributed": ["compare", "tiny.json", "--methods", "list,xla", "--processes", "2"],
    "dask": ["compare", "tiny.json", "--methods", "list", "--cluster", "tcp://127.0.0.1:1"],
    "pymetis": ["optimize", "tiny.json", "--method", "metis", "--devices", "2"],
}


class Refusal(importlib.abc.MetaPathFinder):
    """Refuses packages, as if they were not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises for refused packages, and leaves all others to the next finder."""
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    from graphrl.cli import main

    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    return code, errors.getvalue()


def run_what_needs_none() -> str:
    """Runs training, plans of JSON and JAX, `jit` and `checkpoint`; returns the standard error of the training."""
    import jax
    import jax.numpy as jnp

    import graphrl

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.sin(x) @ jnp.cos(x)))

    x = jnp.ones((8, 8))
    assert graphrl.optimize(graphrl.from_jax(loss, x), objective="peak_memory", evaluations=10).value > 0
    assert graphrl.jit(loss, seconds=0.1)(x) == loss(x)
    assert jax.grad(graphrl.checkpoint(loss, budget=0.5))(x).shape == x.shape
    code, errors = run(["optimize", "tiny.json", "--method", "list"])
    assert code == 0, errors
    settings = [word for setting in REGAL for word in ("--set", setting)]
    code, errors = run(["train", "regal", "--out", "run", *settings])
    assert code == 0, errors
    return errors


if __name__ == "__main__":
    refused = json.loads(sys.argv[1])
    # orbax-checkpoint, which graphrl needs, brings psutil in its later versions.
    sys.meta_path.insert(0, Refusal([package for package in refused if package != "psutil"]))
    training = run_what_needs_none()
    sys.modules["psutil"] = None  # type: ignore[assignment]
    failed = {package: run(arguments) for package, arguments in FAILING.items()}
    print(json.dumps({"training": training, "failed": failed}))
