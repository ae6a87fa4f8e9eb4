"""Policies for tables: resumable runs of `graphrl train`, and copies named by digest.

Rows identify a method by its name, checkpoint included. So each policy is copied to a file named by its digest. A new
policy in the same folder is then a new method, and a known policy in another folder is not measured again.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from graphrl.cli import main as graphrl
from graphrl.errors import GraphrlError
from graphrl.files import quote_path
from graphrl.training.agent import Policy

P = TypeVar("P", bound=Policy[Any])


def train_policies(
    kind: type[Policy[Any]], agent: str, run: Path, seeds: int, settings: Sequence[str], config: str = ""
) -> list[Path]:
    """Trains policies with seeds from 0, and returns their files. Existing files are kept.

    Args:
      kind: class of the policies.
      agent: name for `graphrl train`.
      run: prefix of the runs' folders and of the policies' files, which a seed completes. Interrupted runs continue.
      seeds: number of seeds.
      settings: values for --set of `graphrl train`; later ones override.
      config: file for its --config, if any.

    Raises:
      GraphrlError: training fails or is interrupted.
    """
    words = [*(("--config", config) if config else ()), *(word for setting in settings for word in ("--set", setting))]

    def make(folder: Path, seed: int) -> Policy[Any]:
        if graphrl(["train", agent, "--out", str(folder), "--resume", "--seed", str(seed), *words]):
            raise GraphrlError(f"training in {quote_path(folder)} did not finish: see above")
        return kind.load(folder)

    folders = [run.with_name(f"{run.name}-{seed}") for seed in range(seeds)]
    return [
        cached_policy(folder.with_name(f"{folder.name}.msgpack"), functools.partial(make, folder, seed))
        for seed, folder in enumerate(folders)
    ]


def untrained(kind: type[P], config: Any, seed: int = 0) -> P:
    """Creates a policy with initial weights."""
    return kind(config, jax.tree.map(np.asarray, kind.initial(config, jax.random.key(seed))), "not trained")


def cached_policy(file: Path, make: Callable[[], Policy[Any]]) -> Path:
    """Returns the file of a policy, which is made and saved if missing."""
    if not file.exists():
        print(f"training {file.stem}", file=sys.stderr, flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        make().save(file)
    return file


def copy_policy(policy: Policy[Any], folder: Path) -> Path:
    """Copies a policy to `folder`/policies, unless the copy exists. Returns its path.

    Raises:
      GraphrlError: the path cannot be an option of a method.
    """
    file = folder / "policies" / f"{policy.digest}.msgpack"
    if any(sign in os.fspath(file) for sign in ",="):
        raise GraphrlError(f"{quote_path(file)}: the path may not hold commas or equals signs: give another --out")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        policy.save(file)
    return file
