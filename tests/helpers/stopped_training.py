"""`graphrl train tiny ...` with a slow compilation of its first update (or other function): WHICH, ARGUMENT..."""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_agent import TINY, TinyConfig, tiny_learner

from graphrl.agents import AGENTS
from graphrl.cli import main
from graphrl.learning.learner import Learner


def slow_to_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function: while it is first traced, Python runs no signal handler, as while XLA compiles."""
    traced: list[bool] = []

    def slow(*arguments: Any) -> Any:
        if not traced:
            traced.append(True)
            while WHICH == "update" and not FIRST.exists():  # the main thread waits for the thread that compiles it
                time.sleep(0.05)
            print("compiling", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000_000)
            print("compiled", flush=True)
        return function(*arguments)

    return slow


def slow_learner(config: TinyConfig) -> Learner:
    """The tiny agent's learner, slow in the function that the first argument names."""
    learner = tiny_learner(config)
    slow: dict[str, Any] = {WHICH: slow_to_compile(getattr(learner, WHICH))}
    return learner._replace(**slow)


AGENT = dataclasses.replace(TINY, learner=lambda config, mesh, data: slow_learner(config))
WHICH = sys.argv.pop(1) if __name__ == "__main__" else ""
FIRST = Path(sys.argv[sys.argv.index("--out") + 1], "step-00000000") if "--out" in sys.argv else Path()

if __name__ == "__main__":
    AGENTS["tiny"] = "__main__"
    sys.exit(main())
