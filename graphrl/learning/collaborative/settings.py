"""What a search by evolution and policy gradient is made from."""

import dataclasses

from graphrl.learning.evolution import EvolutionSettings
from graphrl.learning.rollouts import Exploration
from graphrl.learning.sac import SacSettings


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one search; the numbers are those of EGRL's table 2 and of its code.

    Attributes:
      networks, chromosomes: of the population; with none of both, learners are alone.
      greedy, noisy: roll-outs of learners in a generation; with none of both, evolution is alone.
      exploration, noise: of noisy roll-outs, see `rollouts.explored`.
      steps: of an episode.
      endless: whether values go on after an episode's last step, as in the published code, which has episodes of one
        step and a discount of 0.99 all the same; else an episode of one step is a bandit's.
      discounts: of each learner: CERL's portfolio; EGRL has one learner.
      replay: transitions that are remembered.
      batch: transitions of a gradient step.
      gradient_steps: of every learner for each step in the environment, at least one in a generation.
      migrate_every: generations; 0 for never.
      evolution, sac: see there.
    """

    networks: int = 16
    chromosomes: int = 4
    greedy: int = 1
    noisy: int = 1
    exploration: Exploration = "gaussian"
    noise: float = 0.2
    steps: int = 1
    endless: bool = False
    discounts: tuple[float, ...] = (0.99,)
    replay: int = 100_000
    batch: int = 24
    gradient_steps: float = 1.0
    migrate_every: int = 1
    evolution: EvolutionSettings = dataclasses.field(default_factory=EvolutionSettings)
    sac: SacSettings = dataclasses.field(default_factory=SacSettings)

    @property
    def population(self) -> int:
        """k: networks, then chromosomes."""
        return self.networks + self.chromosomes

    @property
    def rollouts(self) -> int:
        """Of a generation on every graph: the population's, then those of learners, the noisy ones first."""
        return self.population + self.noisy + self.greedy

    @property
    def has_learners(self) -> bool:
        """Whether evolution is not alone."""
        return self.noisy + self.greedy > 0
