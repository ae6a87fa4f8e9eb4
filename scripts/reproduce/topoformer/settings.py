"""Settings of the command line, graphs, and entrants of all sections."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from graphrl.agents.topoformer.network import Policy
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.families import sample
from graphrl.solvers.base import Budget
from reproduce import launcher, policies
from reproduce.contest import Contest, Entrant
from reproduce.launcher import check_known, numbers, option, whole_number

PROBLEM = Problem()  # peak memory of one device
ENDS = Budget(None, 3600.0)  # for methods that end; with a limit in seconds, programs are compiled beforehand

DP, RANDOM = "approximate DP", "random 100"
# label -> method
FAST = {RANDOM: "random-priorities", "depth first": "depth-first", "breadth first": "breadth-first"}
FAST |= {name: name for name in ("xla-list", "xla-dfs", "xla-postorder", "xla")}
FAST |= {name: name for name in ("inductor-lpmf", "inductor-bfs", "inductor-dfs", "inductor")}
DECODED = {
    "greedy": "topoformer:decode=greedy",
    "sample": "topoformer:decode=sample,samples=16",
    "beam": "topoformer:decode=beam,samples=16",
}
TIMED = {"anneal": "anneal", "topoformer+": "topoformer+"}
METHODS = (DP, "dfs-dp", *FAST, *DECODED, *TIMED)
TRAINING = 5_000  # seeds of layered graphs from here on are for training
OURS = "topoformer"
# row of the table -> settings of training
ENCODERS: dict[str, tuple[str, ...]] = {
    name: (f"agent.encoder={name}", "agent.decoder=priorities")
    for name in ("mlp", "transformer", "gat", "gat-both", "topoformer-dag", OURS)
}
DECODERS: dict[str, tuple[str, ...]] = {
    "gat + autoregressive": ("agent.encoder=gat", "agent.decoder=autoregressive"),
    "topoformer + autoregressive": (f"agent.encoder={OURS}", "agent.decoder=autoregressive"),
    OURS: ENCODERS[OURS],
    "topoformer + sequential": (f"agent.encoder={OURS}", "agent.decoder=sequential"),
}
# settings of a training that only shows that everything works
QUICK = (
    "data.train=layered:20x8@10000", "data.validation=layered:20x4@5000", "data.graphs=2", "agent.width=8",
    "agent.layers=1", "agent.heads=1", "agent.head_width=4", "agent.samples=2", "training.steps=2",
    "training.validate_every=1",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/topoformer-tables"), "folder of measurements, pictures and training")
    graphs: int = option(300, "unseen ones of each size", quick=2)
    slow: int | None = option(
        None, "of these for approximate DP, dfs-dp and what takes over 1 s (default: all)", quick=1, parse=whole_number,
        metavar="N",
    )  # fmt: skip
    sizes: tuple[int, ...] = option((100, 500, 1000, 2000), "ops of the layered graphs", quick=(20, 30), parse=numbers)
    ablation_sizes: tuple[int, ...] = option((100, 500), "ops of those of the ablations", quick=(20,), parse=numbers)
    width: int = option(10_000, "sets that approximate DP keeps, K", quick=100)
    dfs_dp: float = option(60.0, "seconds of dfs-dp", quick=0.2)
    most_ops: int = option(2_000, "of the programs of section real")
    seeds: int = option(3, "of training")
    checkpoint: Path | None = option(None, "a run, a checkpoint or a policy's file", parse=Path, metavar="PATH")
    run: Path | None = option(None, "of training, for section budget", parse=Path, metavar="PATH")
    train_real: bool = option(False, "section real also trains on programs")
    set: Sequence[str] = option(
        (), "of `graphrl train` where policies are trained", parse=str, action="append", metavar="KEY=VALUE"
    )

    def check(self) -> None:
        """Checks graphs, methods and the checkpoint.

        Raises:
          GraphrlError: there are too many graphs, an unknown method, or a checkpoint that cannot be read.
        """
        if self.graphs > TRAINING:
            raise GraphrlError(f"--graphs {self.graphs}: must be at most {TRAINING}: graphs of other seeds train")
        check_known("method", self.methods or (), METHODS)
        _ = self.given

    @functools.cached_property
    def given(self) -> str:
        """Path of the copy of --checkpoint, "" for the policy that graphrl ships.

        Raises:
          GraphrlError: the checkpoint cannot be read.
        """
        return "" if self.checkpoint is None else self.kept(self.checkpoint)

    def kept(self, path: Path) -> str:
        """Returns the path of a policy's copy in --out.

        Raises:
          GraphrlError: the policy cannot be read.
        """
        return str(policies.copy_policy(Policy.load(path), self.out))

    def trained(self, name: str, settings: Sequence[str]) -> list[str]:
        """Trains policies, one per seed, and returns the paths of their copies. Interrupted trainings resume.

        Args:
          name: name of the folders.
          settings: values for --set of `graphrl train`; those of the command line override them.

        Raises:
          GraphrlError: training fails or is interrupted.
        """
        words = [*settings, *(QUICK if self.quick else ()), *self.set]
        files = policies.train_policies(Policy, "topoformer", self.out / "training" / name, self.seeds, words)
        return [self.kept(file) for file in files]

    @property
    def few(self) -> int:
        """Number of graphs for slow methods."""
        return self.graphs if self.slow is None else min(self.slow, self.graphs)

    def on_layered(self, ops: int, entrants: Sequence[Entrant]) -> Contest:
        """Runs all entrants on the unseen layered graphs of a size.

        Raises:
          Interrupted: Ctrl-C; finished rows stay in the file.
        """
        graphs = [sample("layered", ops, seed)[0] for seed in range(self.graphs)]
        return self.contest(graphs, PROBLEM, entrants)

    def reference(self) -> Entrant:
        """Returns the entrant that gaps are measured from, approximate dynamic programming."""
        return Entrant(DP, [f"approximate-dp:width={self.width}"], ENDS, self.few)

    def classical(self) -> list[Entrant]:
        """Returns the selected methods without learning. Always includes the two that gaps are measured from."""
        entrants = [self.reference(), Entrant("dfs-dp", ["dfs-dp"], Budget(None, self.dfs_dp), self.few)]
        entrants += [Entrant(label, [method], ENDS) for label, method in FAST.items()]
        entrants += self._at_times("anneal", "anneal")
        return [one for one in entrants if one.label in (DP, RANDOM) or self._takes_part(one.label)]

    def learned(self) -> list[Entrant]:
        """Returns the selected decodings of the policy, and its warm start of annealing."""
        warm = self._at_times("topoformer+", method_of("topoformer+", self.given))
        entrants = [*self.decoded([self.given]), *warm]
        return [one for one in entrants if self._takes_part(one.label)]

    def decoded(self, checkpoints: Sequence[str], mark: str = "") -> list[Entrant]:
        """Returns the three decodings of policies, one policy per seed; `mark` is appended to the labels."""
        return [
            Entrant(f"{label}{mark}", [method_of(method, path) for path in checkpoints], ENDS)
            for label, method in DECODED.items()
        ]

    def _at_times(self, label: str, method: str) -> list[Entrant]:
        return [
            Entrant(f"{label} {seconds:g} s", [method], Budget(None, seconds), self.few if seconds > 1 else None)
            for seconds in self.times
        ]

    def _takes_part(self, label: str) -> bool:
        return self.methods is None or label in self.methods or label.partition(" ")[0] in self.methods


def method_of(method: str, checkpoint: str) -> str:
    """Returns a learned method's name with a policy as its option; "" plays the shipped policy."""
    if not checkpoint:
        return method
    return f"{method}{',' if ':' in method else ':'}checkpoint={checkpoint}"
