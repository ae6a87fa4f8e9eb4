"""Makes the programs of one case ready: compiled, and called once for their results."""

import functools
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh

from graphrl.bench import machine
from graphrl.bench.cases import DEVICES, PARAMETERS, Case, Settings, problem
from graphrl.bench.chromosomes import random_chromosomes
from graphrl.bench.compiled import CompiledGraphs, Unavailable
from graphrl.bench.external import Reference
from graphrl.bench.graphs import random_graphs
from graphrl.bench.programs import Costs, Program, graphrl_evaluation, plain_evaluation
from graphrl.bench.searches import graphrl_search, own_work, plain_search
from graphrl.bench.timing import timed

# The plain version's time grows with the square of the ops. Above so many ops it gets one graph a thread, and above
# the second figure its BRKGA runs get shorter.
_PLAIN_BATCH_OPS, _PLAIN_SEARCH_OPS = 512, 64


class Prepared:
    """One case: its graphs, its chromosomes, and its programs by method.

    Args:
      reference: the user's, or None.
    """

    def __init__(self, settings: Settings, case: Case, reference: Reference | None) -> None:
        self.settings, self.case, self.reference = settings, case, reference
        self.graphs = random_graphs(case.num_ops, settings.num_graphs, settings.seed)
        self.problem = problem(case.objective, case.transfer)

    def program(self, method: str) -> Program:
        """The program of a method.

        Raises:
          Unavailable: the method has none for this case, or none on this machine; the message says why.
        """
        make: dict[str, Callable[[], Program]] = {
            "graphrl": self._graphrl,
            "plain": self._plain,
            "compiled": self._compiled,
            "reference": self._reference,
        }
        return make[method]()

    def parts(self) -> dict[str, Program]:
        """What tells the shares of a BRKGA run: its own work alone ("own"), and a run with Beta proposals ("beta")."""
        s = self.settings
        arguments = self.graphs, self.problem, PARAMETERS, s.evaluations, self._mesh(len(self.graphs)), s.seed
        return {"own": own_work(*arguments), "beta": graphrl_search(*arguments, proposals=True)}

    @functools.cached_property
    def _chromosomes(self) -> list[np.ndarray]:
        seeds = range(self.settings.seed, self.settings.seed + len(self.graphs))
        draw = functools.partial(random_chromosomes, devices=DEVICES, count=PARAMETERS.population)
        return [draw(graph, seed=seed) for graph, seed in zip(self.graphs, seeds, strict=True)]

    def _mesh(self, graphs: int) -> Mesh:
        return machine.make_mesh(self.settings.threads, graphs)

    def _graphrl(self) -> Program:
        case, settings, mesh = self.case, self.settings, self._mesh(len(self.graphs))
        if case.search:
            return graphrl_search(self.graphs, self.problem, PARAMETERS, settings.evaluations, mesh, settings.seed)
        return graphrl_evaluation(
            self.graphs, self._chromosomes, self.problem, mesh, makespan=case.makespan, memory=case.memory
        )

    def _plain(self) -> Program:
        case, settings = self.case, self.settings
        count = len(self.graphs) if case.num_ops <= _PLAIN_BATCH_OPS else settings.threads
        graphs, mesh = self.graphs[:count], self._mesh(count)
        if case.search:
            shorter = (_PLAIN_SEARCH_OPS / max(_PLAIN_SEARCH_OPS, case.num_ops)) ** 2
            evaluations = int(settings.evaluations * shorter)
            return plain_search(graphs, self.problem, PARAMETERS, evaluations, mesh, settings.seed)
        return plain_evaluation(
            graphs, self._chromosomes[:count], self.problem, mesh, makespan=case.makespan, memory=case.memory
        )

    def _compiled(self) -> Program:
        graphs, case, settings = CompiledGraphs(self.graphs, self.problem), self.case, self.settings
        generations = PARAMETERS.generations(settings.evaluations)

        def search(runs: int) -> int:
            for _ in range(runs):
                graphs.search(PARAMETERS, generations, settings.seed, settings.threads)
            return runs * len(self.graphs) * generations * PARAMETERS.offspring

        def evaluate(runs: int) -> int:
            graphs.evaluate(
                self._chromosomes, timed=case.makespan, memory=case.memory, repeats=runs, threads=settings.threads
            )
            return runs * len(self.graphs) * PARAMETERS.population

        if case.search:
            return Program("compiled", timed(search), len(self.graphs), PARAMETERS.population)
        costs = Costs(*graphs.evaluate(self._chromosomes, timed=case.makespan, memory=case.memory))
        return Program("compiled", timed(evaluate), len(self.graphs), PARAMETERS.population, costs=costs)

    def _reference(self) -> Program:
        case, settings = self.case, self.settings
        if self.reference is None:
            raise Unavailable("no reference was given")
        if case.search:
            generations = PARAMETERS.generations(settings.evaluations)
            return self.reference.search(self.graphs, case.objective, PARAMETERS, generations, settings.seed)
        if case.makespan and case.memory and case.transfer == "free":
            return self.reference.evaluation(self.graphs)
        raise Unavailable("costs makespan and memory together only, under free transfers")
