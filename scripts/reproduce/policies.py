"""Policies for tables: runs of `graphrl train` that go on where they were, and copies named after what they hold.

Rows know a method by its name, checkpoint included. So each policy is copied to a file that is named after its digest:
another policy in the same folder is another method, and the same one elsewhere is not measured again.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphrl.cli import main as graphrl
from graphrl.errors import GraphrlError
from graphrl.files import shown
from graphrl.training.agent import Policy
from graphrl.training.checkpoints import Checkpoints, read_info


def train(agent: str, folder: Path, seed: int, settings: Sequence[str]) -> None:
    """Trains in a folder to the last step, unless that has been done.

    Args:
      agent: its name.
      folder: of the run; one that was interrupted goes on.
      seed: of the run.
      settings: as --set of `graphrl train`; later ones count.

    Raises:
      GraphrlError: training fails or is interrupted.
    """
    if _is_done(folder):
        return
    print(f"training {folder.name}", file=sys.stderr, flush=True)
    words = [word for setting in settings for word in ("--set", setting)]
    if graphrl(["train", agent, "--out", str(folder), "--resume", "--seed", str(seed), *words]):
        raise GraphrlError(f"training in {shown(folder)} has not come to its end: see above")


def train_seeds(agent: str, folder: Path, seeds: int, settings: Sequence[str]) -> list[Path]:
    """The folders of the runs of seeds from 0 on, `folder` with the seed behind its name; see `train`."""
    folders = [folder.with_name(f"{folder.name}-{seed}") for seed in range(seeds)]
    for seed, one in enumerate(folders):
        train(agent, one, seed, settings)
    return folders


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


def _is_done(folder: Path) -> bool:
    latest = Checkpoints(folder, 1).latest()
    if latest is None:
        return False
    info = read_info(latest)
    return info.step >= int(info.config["training"]["steps"])
