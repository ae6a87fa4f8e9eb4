"""The policies that `go`, `go+` and `gdp` play in tables: of the command line, else the one that ships or untrained."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from graphrl.agents.go.network import GdpPolicy, Policy
from graphrl.costs.problem import Problem
from reproduce.go.searches import Entry
from reproduce.policies import kept

KINDS: dict[str, type[Policy]] = {"go": Policy, "go+": Policy, "gdp": GdpPolicy}  # what plays them is `go` or `go+`


class Policies:
    """Of one command line."""

    def __init__(self, files: Mapping[type[Policy], Path | None], folder: Path) -> None:
        """
        Args:
          files: of each kind the file, or the folder of a run; None is the policy that ships, or one before any
            training.
          folder: of measurements, where copies are kept.
        """
        self._files, self._folder, self._policies = files, folder, dict[type[Policy], Policy]()

    def played(self, entry: Entry) -> Entry:
        """The entry with its policy, if it plays one.

        Raises:
          GraphrlError: the policy cannot be read.
        """
        kind = KINDS.get(_name(entry))
        if kind is None:
            return entry
        method = solver_of(entry.method)
        joint = "," if ":" in method else ":"
        return entry._replace(method=f"{method}{joint}checkpoint={kept(self._policy(kind), self._folder)}")

    def notes(self, entries: Sequence[Entry]) -> Iterator[str]:
        """What the policies of some entries are."""
        for kind in dict.fromkeys(KINDS[_name(entry)] for entry in entries if _name(entry) in KINDS):
            yield f"policy of {' and '.join(name for name in KINDS if KINDS[name] == kind)}: {self._policy(kind).note}"

    def _policy(self, kind: type[Policy]) -> Policy:
        if kind not in self._policies:
            file = self._files[kind]
            self._policies[kind] = _default(kind) if file is None else kind.load(file)
        return self._policies[kind]


def solver_of(method: str) -> str:
    """The method that plays what a table calls so: GDP is played by `go`."""
    name, colon, options = method.partition(":")
    return f"{'go' if name == 'gdp' else name}{colon}{options}"


def _name(entry: Entry) -> str:
    return entry.name.partition(":")[0]


def _default(kind: type[Policy]) -> Policy:
    if kind is Policy:
        return Policy.default(Problem("makespan"))
    config = kind.settings()
    params = kind.initial(config, jax.random.key(0))
    return kind(config, jax.tree.map(np.asarray, params), "not trained")
