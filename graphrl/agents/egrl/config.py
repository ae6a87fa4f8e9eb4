"""Settings of EGRL: of a search on one graph, and of training on a set of graphs."""

import dataclasses
from typing import Literal

from graphrl.agents.egrl.domain import Hint, Reward
from graphrl.costs.maps.chip import MemoryChip, find_chip
from graphrl.errors import ProblemError
from graphrl.learning.collaborative import Settings
from graphrl.learning.evolution import EvolutionSettings, Source
from graphrl.learning.learner import MOST, check_ranges
from graphrl.learning.sac import SacSettings

Variant = Literal["egrl", "ea", "pg"]
Encoding = Literal["means", "unet"]
Learning = Literal["search", "ppo"]

_LEARNERS = 16  # at most: all of them learn in every generation


@dataclasses.dataclass(frozen=True)
class EgrlConfig:
    """The numbers are those of the paper's table 2 unless it is said otherwise.

    Attributes:
      chip: name or file of the chip that maps are for; the policy has outputs for its memories.
      variant: "egrl"; its parts alone: "ea", evolution, or "pg", policy gradient.
      learning: how `graphrl train egrl` trains a policy: by the "search" that `variant` names, or by "ppo" (ours), see
        `learner.update_ppo`.
      samples: maps of every graph in an update of PPO.
      reward: see `domain.evaluate`; "valid" is the paper's, "rectified" ours.
      hint: the map that networks see beside the features: "none", everything in memory 0, as in the paper; "compiler",
        the compiler's own; or "uniform", the fastest of those that the compiler makes of asking one memory for all
        weights and one for all outputs, M^2 for M memories.
      preference: an untrained network prefers what the hint was made of (without a hint the fastest memory for all) by
        so many nats: with enough of them it asks for just that. The paper has none.
      encoder: of graphs: "means", see `NeighbourMeans` (ours), or "unet", the paper's Graph U-Net, see `GraphUNet`.
      width: of all vectors; the paper's 128.
      depth, heads: of the Graph U-Net; the paper's 4 and 4.
      population, boltzmann: individuals, and the share of them that are Boltzmann chromosomes: 0.2 in the paper, where
        one run in ten gets stuck.
      entropy: what a nat is worth to PPO, or alpha of SAC (the paper's 0.05 learned next to nothing on a toy whose best
        map is known: ours).
      rate: of Adam.
      strength: standard deviation of mutations of weights (ours).
      chromosome_strength: of those of chromosomes (the published code's).
      temperature: the hottest of the first chromosomes (the published code's). From 0.03 on they draw nearly what their
        priors say, while at 10 all memories are about as likely; the search as a whole was no better for it.
      operators: whose mutation of chromosomes and weights, see `EvolutionSettings.noise`.
      gradient_steps: for each map that was tried; the paper's 1 takes four times as long.
      migrate_every: generations between two migrations of the learner into the population; 0 for none.
      endless: whether values go on after the one step of an episode, as in the published code; else it is a bandit's.
      discounts: of each learner. EGRL has one; more are CERL's portfolio, of which those that did better play more. A
        bandit's learners differ only in what they begin with.
      replay: maps that are remembered.
      evaluations: what `graphrl evaluate` gives every method.
      start: a file of `Policy.save` or a checkpoint whose policy training begins with, of the same network; "" begins
        anew.

    Raises:
      ProblemError: a value is out of range.
    """

    chip: str = "nnp-i"
    variant: Variant = "egrl"
    learning: Learning = "search"
    samples: int = 32
    reward: Reward = "rectified"
    hint: Hint = "none"
    preference: float = 0.0
    encoder: Encoding = "means"
    width: int = 16
    depth: int = 2
    heads: int = 4
    population: int = 20
    boltzmann: float = 0.0
    entropy: float = 0.2
    rate: float = 1e-3
    strength: float = 0.05
    chromosome_strength: float = 0.1
    temperature: float = 10.0
    operators: Source = "paper"
    gradient_steps: float = 0.25
    migrate_every: int = 1
    endless: bool = False
    discounts: tuple[float, ...] = (0.99,)
    replay: int = 100_000
    evaluations: int = 4000
    start: str = ""

    def __post_init__(self) -> None:
        integers = {"width": (1, 1024), "depth": (0, 10), "heads": (1, 64), "population": (2, 10_000)}
        integers |= {"replay": (1000, 10**8), "migrate_every": (0, 1_000_000), "evaluations": (1, MOST)}
        integers |= {"samples": (2, 100_000)}
        names = {"variant": Variant, "learning": Learning, "reward": Reward, "hint": Hint}
        names |= {"encoder": Encoding, "operators": Source}
        check_ranges(
            self,
            integers=integers,
            above_zero=("entropy", "rate", "strength", "chromosome_strength", "temperature", "gradient_steps"),
            not_below_zero=("preference",),
            options=names,
        )
        if not 0 <= self.boltzmann <= 1:
            raise ProblemError(f"boltzmann is {self.boltzmann!r}: must be from 0 to 1")
        if not 1 <= len(self.discounts) <= _LEARNERS or not all(0 <= each <= 1 for each in self.discounts):
            raise ProblemError(f"discounts are {self.discounts!r}: must be 1 to {_LEARNERS} numbers from 0 to 1")

    @property
    def problem(self) -> MemoryChip:
        """The chip that maps are for.

        Raises:
          GraphrlError: there is none of that name, or in that file.
        """
        return find_chip(self.chip)

    @property
    def individuals(self) -> int:
        """Networks of the population, which devices share; `graphrl train` gives PPO one device, which is a minute."""
        return max(1, self.settings.networks) if self.learning == "search" else 1

    @property
    def settings(self) -> Settings:
        """Of the search."""
        chromosomes = round(self.boltzmann * self.population)
        evolution = EvolutionSettings(
            strength=self.strength,
            chromosome_strength=self.chromosome_strength,
            temperature=self.temperature,
            noise=self.operators,
        )
        sac = SacSettings(actor_rate=self.rate, critic_rate=self.rate, entropy=self.entropy)
        each = Settings(
            replay=self.replay,
            gradient_steps=self.gradient_steps,
            migrate_every=self.migrate_every,
            endless=self.endless,
            discounts=self.discounts,
            evolution=evolution,
            sac=sac,
        )
        if self.variant == "pg":
            return dataclasses.replace(each, networks=0, chromosomes=0)
        each = dataclasses.replace(each, networks=self.population - chromosomes, chromosomes=chromosomes)
        return dataclasses.replace(each, greedy=0, noisy=0) if self.variant == "ea" else each
