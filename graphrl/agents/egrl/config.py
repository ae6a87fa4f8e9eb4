"""What a search by EGRL is made from."""

import dataclasses
from typing import Literal, get_args

from graphrl.agents.egrl.domain import Reward
from graphrl.errors import ProblemError
from graphrl.learning.boltzmann import Source
from graphrl.learning.collaborative.settings import Settings
from graphrl.learning.evolution import EvolutionSettings
from graphrl.learning.ranges import check_ranges
from graphrl.learning.sac import SacSettings

Variant = Literal["egrl", "ea", "pg"]


@dataclasses.dataclass(frozen=True)
class EgrlConfig:
    """Of one search. The numbers are those of the paper's table 2 unless it is said otherwise.

    Attributes:
      variant: "egrl"; its parts alone: "ea", evolution, or "pg", policy gradient.
      reward: see `domain.evaluate`; "valid" is the paper's, "rectified" ours.
      width, depth, heads: of the Graph U-Nets; the paper's have 128, 4 and 4, slower and no better.
      population, boltzmann: individuals, and the share of them that are Boltzmann chromosomes.
      entropy: alpha of SAC (the paper's 0.05 learned next to nothing on a toy whose best map is known: ours).
      rate: of Adam, for actor and critic.
      strength: standard deviation of mutations of weights (ours).
      chromosome_strength: of those of chromosomes (the published code's).
      temperature: the hottest of the first chromosomes (the published code's). From 0.03 on they draw nearly what their
        priors say, while at 10 all memories are about as likely; the search as a whole was no better for it.
      operators: whose mutation of chromosomes and weights, see `EvolutionSettings.noise`.
      gradient_steps: for each map that was tried; the paper's 1 takes four times as long.
      migrate_every: generations between two migrations of the learner into the population; 0 for none.
      endless: whether values go on after the one step of an episode, as in the published code; else it is a bandit's.

    Raises:
      ProblemError: a value is out of range.
    """

    variant: Variant = "egrl"
    reward: Reward = "rectified"
    width: int = 32
    depth: int = 2
    heads: int = 4
    population: int = 20
    boltzmann: float = 0.2
    entropy: float = 0.2
    rate: float = 1e-3
    strength: float = 0.05
    chromosome_strength: float = 0.1
    temperature: float = 10.0
    operators: Source = "paper"
    gradient_steps: float = 0.25
    migrate_every: int = 1
    endless: bool = False

    def __post_init__(self) -> None:
        check_ranges(
            self,
            integers={
                "width": (1, 1024),
                "depth": (0, 10),
                "heads": (1, 64),
                "population": (2, 10_000),
                "migrate_every": (0, 1_000_000),
            },
            above_zero=("entropy", "rate", "strength", "chromosome_strength", "temperature", "gradient_steps"),
            options={"variant": get_args(Variant), "reward": get_args(Reward), "operators": get_args(Source)},
        )
        if not 0 <= self.boltzmann <= 1:
            raise ProblemError(f"boltzmann is {self.boltzmann!r}: must be from 0 to 1")

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
            gradient_steps=self.gradient_steps,
            migrate_every=self.migrate_every,
            endless=self.endless,
            evolution=evolution,
            sac=sac,
        )
        if self.variant == "pg":
            return dataclasses.replace(each, networks=0, chromosomes=0)
        each = dataclasses.replace(each, networks=self.population - chromosomes, chromosomes=chromosomes)
        return dataclasses.replace(each, greedy=0, noisy=0) if self.variant == "ea" else each
