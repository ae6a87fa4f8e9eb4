"""GO's columns of table 3: policies that decide fusion alone, all kernels one after the other on one device.

All begin at the rule like XLA's. PPO's updates each draw 32 plans around the best so far, as `go:finetune` does.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from graphrl.agents.go.learner import tuned
from graphrl.costs.fusion.exact import Fusion
from graphrl.costs.fusion.problem import FusionProblem
from graphrl.envs.compile.generator import Choices, CompileParams
from graphrl.solvers.fusion.flips import prepare
from graphrl.solvers.fusion.rules import xla_like
from reproduce.go.fusing import FusingPolicy, begun, best_drawn, fused, settings_of, untrained
from reproduce.go.fusion_lessons import ONE_DEVICE, imitator, programs
from reproduce.go.settings import Settings
from reproduce.measurements import Figures

COLUMNS = ("untrained", "go-one", "go", "go, go-one")
UPDATES = 49  # the paper's fine-tuning has fewer than 50
MOST_OPS = 3_000  # of a workload on which there is time for all columns and several seeds
SAMPLES = 64  # plans of a policy that is played
LESSONS, STEPS = 7_500, 900  # ops of a program that is imitated, and steps
QUICK_LESSONS, QUICK_STEPS = 100, 4
HOW = (
    "GO begins at `xla`, too. `go` is the best of 64 plans that a policy draws at once which has learned from the "
    "zoo's training steps where `flips` ends, and never saw the workload. `go-one` learns on the workload alone, by "
    f"{UPDATES} updates of PPO, 32 plans each; `untrained` draws as many plans, in as many rounds, each around the "
    "best so far, without any; and `go, go-one` begins these updates at the plan of `go`. The four are means over the "
    f"seeds on graphs of at most {MOST_OPS:,} ops; on larger ones `go` and `go-one` are of seed 0, and the others were "
    "not run. Seconds of policies are without what compiling their programs for the size takes; the last are of the "
    "updates alone."
)


def by_policy(settings: Settings, name: str, problem: Callable[[], FusionProblem]) -> list[Figures | None]:
    """The figures of `COLUMNS`, means over the seeds; None where nothing was run."""
    measured = functools.partial(_column, settings, name, problem)
    played = functools.partial(measured, "go", _played)
    if settings.quick:
        return [None, None, played(), None]
    if problem().num_ops > MOST_OPS:
        return [None, measured("go-one", _learned), played(), None]
    both = measured("updates", _updated)
    one, after = ({"value": both[column], "seconds": both["seconds"]} if both else None for column in ("one", "after"))
    return [measured("untrained", _untrained), one, played(), after]


def in_one_shot(settings: Settings, problem: FusionProblem, seed: int = 0) -> Fusion:
    """The best of the plans that the policy draws at once."""
    return _best(_policy(settings), problem, rounds=1, samples=SAMPLES, seed=seed)


def notes(settings: Settings) -> list[str]:
    """What the policy has learned from."""
    return [f"policy of `go`: {_policy(settings).note}"]


def _column(
    settings: Settings,
    name: str,
    problem: Callable[[], FusionProblem],
    column: str,
    measure: Callable[[Settings, FusionProblem, int], Figures],
) -> Figures | None:
    def run(seed: int) -> Figures:
        return measure(settings, problem(), seed)

    seeds = range(settings.seeds if problem().num_ops <= MOST_OPS else 1)
    key = {"fusion": name, "policy": column}
    found = settings.measurements.get_all([({**key, "seed": seed}, functools.partial(run, seed)) for seed in seeds])
    figures = [one for one in found if one is not None]
    if len(figures) < len(found):
        return None
    return {what: statistics.mean(one[what] for one in figures) for what in figures[0]}


def _untrained(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """As many plans as PPO has, in as many rounds, of the policy that it begins with."""
    del settings
    config = settings_of("fusion")
    policy, samples = untrained(config, seed), config.ppo.environments
    return {"value": _best(policy, problem, rounds=UPDATES, samples=samples, seed=seed).seconds}


def _played(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """In one shot; the time is without what compiling the network for the size takes."""
    _best(_policy(settings), problem, rounds=1, samples=1, seed=seed)
    began = time.process_time()
    value = in_one_shot(settings, problem, seed).seconds
    return {"value": value, "seconds": time.process_time() - began}


def _updated(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """From the rule like XLA's, and from the policy's plan. The second run has the program of the first, and so it is
    the one that is timed.
    """
    params, seconds = untrained(settings_of("fusion"), seed).params, list[float]()
    kernels = [xla_like(problem), in_one_shot(settings, problem, seed)]
    for number, begins in enumerate(kernels):
        instance, began = _begun(begins), time.process_time()
        kernels[number] = _after_updates(problem, params, instance, seed)
        seconds.append(time.process_time() - began)
    return {"one": kernels[0].seconds, "after": kernels[1].seconds, "seconds": seconds[1]}


def _learned(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """From the rule like XLA's alone."""
    del settings
    params = untrained(settings_of("fusion"), seed).params
    return {"value": _after_updates(problem, params, _begun(xla_like(problem)), seed).seconds}


def _after_updates(problem: FusionProblem, params: Any, instance: CompileParams, seed: int) -> Fusion:
    """The best that updates of a policy on an instance draw."""
    return fused(problem, tuned(settings_of("fusion"), params, instance, jax.random.key(seed), UPDATES)[1])


def _begun(fusion: Fusion) -> CompileParams:
    return begun(fusion, ONE_DEVICE, settings_of("fusion"))


def _best(policy: FusingPolicy, problem: FusionProblem, *, rounds: int, samples: int, seed: int) -> Fusion:
    def cost(choices: Choices) -> float:
        return fused(problem, choices).seconds

    begins = _begun(xla_like(problem))
    return fused(problem, best_drawn(policy, begins, cost, rounds=rounds, samples=samples, seed=seed))


def _policy(settings: Settings) -> FusingPolicy:
    """What imitates `flips` on programs of the zoo, learned once."""
    file = settings.out / "policies" / "fusion.msgpack"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        prepare()
        most, steps = (QUICK_LESSONS, QUICK_STEPS) if settings.quick else (LESSONS, STEPS)
        imitator(programs("v100-fp32", most), steps).save(file)
    return FusingPolicy.load(file)
