"""Settings of EGRL: for a search on one graph, and for training on a set of graphs."""

import dataclasses
from typing import Literal

from graphrl.agents.egrl.domain import Hint, Placement, Reward
from graphrl.costs.maps.chip import MemoryChip, find_chip
from graphrl.errors import ProblemError
from graphrl.learning.collaborative import Settings
from graphrl.learning.evolution import EvolutionSettings, Source
from graphrl.learning.learner import MAX_COUNT, check_ranges
from graphrl.learning.sac import SacSettings

Variant = Literal["egrl", "ea", "pg"]
Encoding = Literal["means", "unet"]
Learning = Literal["search", "ppo"]

_LEARNERS = 16  # maximum number: all of them learn in every generation


@dataclasses.dataclass(frozen=True)
class EgrlConfig:
    """Settings of EGRL. The defaults are those of the paper's table 2 unless stated otherwise.

    Attributes:
      chip: name or file of the chip for which maps are made; an independent policy has outputs for its memories.
      drawn: share of the graphs, in training and in validation, for which maps are made on a chip drawn at random
        instead (`costs.maps.drawn`), with the same number of memories. With `data.augment` a graph has another chip
        each time.
      variant: "egrl"; or one of its parts alone: "ea", evolution, or "pg", policy gradient.
      learning: how `graphrl train egrl` trains a policy: by the "search" that `variant` names, or by "ppo" (ours), see
        `learner.update_ppo`.
      samples: number of maps per graph in a PPO update.
      reward: reward of a map: "valid", the paper's, is negative if the compiler moved anything; "rectified" (ours) is
        that of the compiler's valid version of the map.
      hint: the map that networks see in addition to the features: "none", everything in memory 0, as in the paper;
        "compiler", the compiler's own; or "uniform", the fastest of the compiler's maps for requests of one memory for
        all weights and one for all outputs, M^2 requests for M memories.
      preference: bonus in nats of the initial network for the request that led to the hint (without a hint: the fastest
        memory for all tensors); with a large one it requests exactly that. The paper has no such bonus.
      placement: "independent", the paper's: the choices do not depend on each other given the graph; "sequential"
        (ours): tensors are placed one after another, see `placement`, starting from the hint.
      passes: for placement "sequential", number of times that every tensor is placed.
      encoder: graph encoder of the critic and, for placement "independent", of the actor: "means", see
        `NeighbourMeans` (ours), or "unet", the paper's Graph U-Net, see `GraphUNet`.
      width: width of all vectors; the paper's is 128.
      depth, heads: settings of `GraphUNet`; the paper's are 4 and 4.
      population, boltzmann: number of individuals, and the share of them that are Boltzmann chromosomes: 0.2 in the
        paper, with which one run in ten gets stuck.
      entropy_coefficient: weight of the entropy per nat in PPO, or alpha of SAC (ours: the paper's 0.05 learned next to
        nothing on a toy whose best map is known).
      rate: Adam's learning rate.
      decay_steps: number of PPO's updates over which it falls to a twentieth along a cosine; 0 keeps it.
      strength: standard deviation of mutations of weights (ours).
      chromosome_strength: standard deviation of mutations of chromosomes (the published code's).
      temperature: highest initial temperature of chromosomes (the published code's). At 0.03 chromosomes nearly follow
        their priors, while at 10 all memories are about equally likely; the search as a whole was no better at 0.03.
      operators: source of the mutation of chromosomes and weights, see `EvolutionSettings.noise`.
      gradient_steps: number of gradient steps per evaluated map; the paper's 1 takes four times as long.
      migrate_every: number of generations between migrations of the learner into the population; 0 disables them.
      endless: True bootstraps the value after an episode's only step, as in the published code; False treats it as a
        bandit's.
      discounts: discount of each learner. EGRL has one; several form CERL's portfolio, in which better learners play
        more often. Without `endless`, learners differ only in their initial parameters.
      replay: capacity of the replay, in maps.
      evaluations: number of evaluations that `graphrl evaluate` gives every method.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters.

    Raises:
      ProblemError: a value is out of range.
    """

    chip: str = "nnp-i"
    drawn: float = 0.0
    variant: Variant = "egrl"
    learning: Learning = "search"
    samples: int = 32
    reward: Reward = "rectified"
    hint: Hint = "none"
    preference: float = 0.0
    placement: Placement = "independent"
    passes: int = 2
    encoder: Encoding = "means"
    width: int = 16
    depth: int = 2
    heads: int = 4
    population: int = 20
    boltzmann: float = 0.0
    entropy_coefficient: float = 0.2
    rate: float = 1e-3
    decay_steps: int = 0
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
    init_checkpoint: str = ""

    def __post_init__(self) -> None:
        integers = {"width": (1, 1024), "depth": (0, 10), "heads": (1, 64), "population": (2, 10_000)}
        integers |= {"replay": (1000, 10**8), "migrate_every": (0, 1_000_000), "evaluations": (1, MAX_COUNT)}
        integers |= {"samples": (2, 100_000), "passes": (1, 100), "decay_steps": (0, MAX_COUNT)}
        names = {"variant": Variant, "learning": Learning, "reward": Reward, "hint": Hint}
        names |= {"encoder": Encoding, "operators": Source, "placement": Placement}
        check_ranges(
            self,
            integers=integers,
            above_zero=(
                "entropy_coefficient",
                "rate",
                "strength",
                "chromosome_strength",
                "temperature",
                "gradient_steps",
            ),
            not_below_zero=("preference",),
            fractions=("boltzmann", "drawn"),
            options=names,
        )
        if not 1 <= len(self.discounts) <= _LEARNERS or not all(0 <= each <= 1 for each in self.discounts):
            raise ProblemError(f"discounts are {self.discounts!r}: must be 1 to {_LEARNERS} numbers from 0 to 1")

    @property
    def problem(self) -> MemoryChip:
        """The chip for which maps are made.

        Raises:
          GraphrlError: there is no chip of that name, or in that file.
        """
        return find_chip(self.chip)

    @property
    def individuals(self) -> int:
        """Number of networks that the devices share; 1 for PPO, which trains in about a minute on one device."""
        return max(1, self.settings.networks) if self.learning == "search" else 1

    @property
    def settings(self) -> Settings:
        """Settings of the search."""
        chromosomes = round(self.boltzmann * self.population)
        evolution = EvolutionSettings(
            strength=self.strength,
            chromosome_strength=self.chromosome_strength,
            temperature=self.temperature,
            noise=self.operators,
        )
        sac = SacSettings(actor_rate=self.rate, critic_rate=self.rate, entropy=self.entropy_coefficient)
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
