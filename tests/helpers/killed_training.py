"""Trains the tiny agent and kills its own process: FOLDER, MOMENT of writing a checkpoint, its STEP."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_agent import train_tiny

from graphrl.training import checkpoints

# the function called at the moment; True if the process dies after its call, False if before
MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "half": (checkpoints, "save", False),
    "all": (checkpoints, "write_document", True),
    "renamed": (os, "rename", True),
}


def kill_at(moment: str, checkpoint: Path) -> None:
    """Kills the process at the given moment of the first write of a checkpoint."""
    place, name, after = MOMENTS[moment]
    call: Callable[..., Any] = getattr(place, name)
    temporary = checkpoint.with_name(f".{checkpoint.name}.tmp")

    def killed(path: Any, *rest: Any, **options: Any) -> Any:
        if not temporary.exists() or (moment == "renamed" and rest != (checkpoint,)):  # orbax renames files, too
            return call(path, *rest, **options)
        if after:
            call(path, *rest, **options)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, name, killed)


if __name__ == "__main__":
    folder, moment, step = sys.argv[1:]
    kill_at(moment, Path(folder) / f"step-{int(step):08d}")
    train_tiny(Path(folder))
