"""Policies for tables: runs of `graphrl train` that go on where they were, and copies named after what they hold.

Rows know a method by its name, checkpoint included. So each policy is copied to a file that is named after its digest:
another policy in the same folder is another method, and the same one elsewhere is not measured again.
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
from graphrl.files import shown
from graphrl.training.agent import Policy

P = TypeVar("P", bound=Policy[Any])


def trained(kind: type[Policy[Any]], agent: str, run: Path, seeds: int, settings: Sequence[str]) -> list[Path]:
    """The files of policies, one a seed from 0 on, trained now unless they are there.

    Args:
      kind: of the policies.
      agent: that `graphrl train` takes.
      run: a folder of a run without its seed, which ends the name; files are beside. What was interrupted goes on.
      seeds: how many.
      settings: as --set of `graphrl train`; later ones count.

    Raises:
      GraphrlError: training fails or is interrupted.
    """
    words = [word for setting in settings for word in ("--set", setting)]

    def make(folder: Path, seed: int) -> Policy[Any]:
        if graphrl(["train", agent, "--out", str(folder), "--resume", "--seed", str(seed), *words]):
            raise GraphrlError(f"training in {shown(folder)} has not come to its end: see above")
        return kind.load(folder)

    folders = [run.with_name(f"{run.name}-{seed}") for seed in range(seeds)]
    return [
        once(folder.with_name(f"{folder.name}.msgpack"), functools.partial(make, folder, seed))
        for seed, folder in enumerate(folders)
    ]


def untrained(kind: type[P], config: Any, seed: int = 0) -> P:
    """A policy before any training."""
    return kind(config, jax.tree.map(np.asarray, kind.initial(config, jax.random.key(seed))), "not trained")


def once(file: Path, make: Callable[[], Policy[Any]]) -> Path:
    """The file of a policy, made now unless there is one."""
    if not file.exists():
        print(f"training {file.stem}", file=sys.stderr, flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        make().save(file)
    return file


def kept(policy: Policy[Any], folder: Path) -> Path:
    """A policy's copy in `folder`/policies.

    Raises:
      GraphrlError: the path cannot be an option of a method.
    """
    file = folder / "policies" / f"{policy.digest}.msgpack"
    if any(sign in os.fspath(file) for sign in ",="):
        raise GraphrlError(f"{shown(file)}: the path may not hold commas or equals signs: give another --out")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        policy.save(file)
    return file
