"""Table 3's form: fusion alone, all kernels in sequence on one V100, by rules, searches and GO's policies.

Policies start from the rule like XLA's. Each update of PPO draws 32 plans around the best so far, as `go:finetune`
does. An imitation policy first learns to reach the final plan of `flips` in one step from there.

A choice is weighted by the extra kernel time if it alone is wrong, up to ten times the mean. Choices that make a kernel
too large get that maximum. Most choices make no difference.

The imitated programs are training steps of the zoo's training split. None of GO's workloads is among them, but related
ones are (an unrolled LSTM, GPTs, ResNets).
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.learner import fine_tune
from graphrl.agents.go.network import networks
from graphrl.compare.report import markdown
from graphrl.costs.fusion.exact import Fusion
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.features import no_features
from graphrl.envs.compile.generator import Choices, CompileParams, fusion_sizes
from graphrl.envs.compile.observation import observe
from graphrl.graphs.datasets import zoo
from graphrl.graphs.padding import common_sizes
from graphrl.learning import learner
from graphrl.solvers.fusion.flips import flip_costs, prepare
from graphrl.solvers.fusion.rules import flips, fuse_by, xla_like
from reproduce.go.fusion import CHIP, FusingPolicy, begun, best_drawn, fused, milliseconds, problem_of, settings_of
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.policies import once, untrained
from reproduce.results import Table

PROGRAMS = "training/jaxpr/train-split"
ONE_DEVICE = Problem("makespan", 1, "free")
RATE = 2e-3  # of Adam, falling to 0
LARGEST = 10.0  # largest weight of a choice, in means
RULES = ("none", "single", "xla", "all", "flips", "anneal")
COLUMNS = ("untrained", "go-one", "go", "go, go-one")
TIMED = ("flips", "anneal", *COLUMNS[-2:])
UPDATES = 49  # the paper's fine-tuning has fewer than 50
MOST_OPS = 3_000  # largest workload that leaves time for all columns and several seeds
SAMPLES = 64  # plans drawn from a trained policy
LESSONS, STEPS = 7_500, 900  # most ops of an imitated program, and steps of imitation
QUICK_LESSONS, QUICK_STEPS = 100, 4
HOW = (
    "What all kernels take, one after the other on one V100, ms, and CPU seconds of some columns. A "
    "framework's default is `none` (each op a kernel), `single` (what one op reads is computed there) or `xla` "
    "(that, and what is 8 times as large as what it is made from); `flips` inlines one op or takes it out while "
    "that helps, and `anneal` is simulated annealing from there, 2 million flips. "
    "GO begins at `xla`, too. `go` is the best of 64 plans that a policy draws at once which has learned from the "
    "zoo's training steps where `flips` ends, and never saw the workload. `go-one` learns on the workload alone, by "
    f"{UPDATES} updates of PPO, 32 plans each; `untrained` draws as many plans, in as many rounds, each around the "
    "best so far, without any; and `go, go-one` begins these updates at the plan of `go`. The four are means over the "
    f"seeds on graphs of at most {MOST_OPS:,} ops; on larger ones `go` and `go-one` are of seed 0, and the others were "
    "not run. Seconds of policies are without what compiling their programs for the size takes; the last are of the "
    "updates alone."
)


def table3(settings: Settings) -> Iterator[Table]:
    """Table with a row for each workload."""
    lines, values = list[list[str]](), list[list[float | None]]()
    for name in settings.workloads:
        keys = [{"fusion": name, "rule": rule} for rule in RULES]
        row = [settings.measurements.get(key, functools.partial(_by_rule, name, key["rule"])) for key in keys]
        if figures := [one for one in row if one is not None and all(row)]:
            every = [*figures, *_by_policy(settings, name)]
            values.append([one["value"] if one else None for one in every])
            spent = [f"{one['seconds']:.1f}" if one else "-" for one in (*figures[-2:], *every[-2:])]
            lines.append([name, f"{figures[0]['ops']:,}", *map(milliseconds, every), *spent])
    columns = (*RULES, *COLUMNS)
    notes = [*_against("xla", columns, values, columns), *_against("flips", columns, values, COLUMNS)]
    notes.append(f"policy of `go`: {_policy(settings).note}")
    headings = ("workload", "ops", *(f"`{column}`" for column in columns), *(f"`{column}`, s" for column in TIMED))
    yield settings.measurements.table("Fusion alone", HOW, markdown(headings, lines), notes=notes)


def in_one_shot(settings: Settings, problem: FusionProblem, seed: int = 0) -> Fusion:
    """Best of a batch of plans drawn from the policy."""
    return _best(_policy(settings), problem, rounds=1, samples=SAMPLES, seed=seed)


def _against(
    other: str, columns: Sequence[str], rows: Sequence[Sequence[float | None]], compared: Sequence[str]
) -> Iterator[str]:
    """Ratios of some columns to another, over workloads that have both. Rows have all columns."""
    for column in compared:
        if column != other:
            pairs = ((row[columns.index(column)], row[columns.index(other)]) for row in rows)
            yield from against(f"`{column}` against `{other}`", pairs)


def _by_rule(name: str, rule: str) -> Figures:
    prepare()
    problem, began = problem_of(name), time.thread_time()
    return {"ops": problem.num_ops, "value": fuse_by(rule, problem).seconds, "seconds": time.thread_time() - began}


def _by_policy(settings: Settings, name: str) -> list[Figures | None]:
    """Figures of `COLUMNS`, means over the seeds; None where nothing was run."""
    seeds = settings.seeds if problem_of(name).num_ops <= MOST_OPS else 1

    def column(policy: str, measure: Callable[[Settings, FusionProblem, int], Figures]) -> Figures | None:
        runs = settings.of_seeds(
            {"fusion": name, "policy": policy}, lambda seed: measure(settings, problem_of(name), seed), seeds
        )
        if len(runs) < seeds:
            return None
        return {what: statistics.mean(one[what] for one in runs) for what in runs[0]}

    played = column("go", _played)
    if settings.quick:
        return [None, None, played, None]
    if problem_of(name).num_ops > MOST_OPS:
        return [None, column("go-one", _learned), played, None]
    both = column("updates", _updated)
    one, after = ({"value": both[part], "seconds": both["seconds"]} if both else None for part in ("one", "after"))
    return [column("untrained", _untrained), one, played, after]


def _untrained(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Best plan of the untrained policy, with PPO's number of plans and rounds."""
    policy = untrained(FusingPolicy, settings_of("fusion"), seed)
    samples = policy.config.ppo.environments
    return {"value": _best(policy, problem, rounds=UPDATES, samples=samples, seed=seed).seconds}


def _played(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Best plan in one shot; the time excludes compilation of the network for the size."""
    _best(_policy(settings), problem, rounds=1, samples=1, seed=seed)
    began = time.process_time()
    value = in_one_shot(settings, problem, seed).seconds
    return {"value": value, "seconds": time.process_time() - began}


def _updated(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """PPO's updates from the rule like XLA's, and from the policy's plan.

    Only the second run is timed, because it reuses the program that the first one compiled.
    """
    seconds = list[float]()
    kernels = [xla_like(problem), in_one_shot(settings, problem, seed)]
    for number, begins in enumerate(kernels):
        instance, began = _begun(begins), time.process_time()
        kernels[number] = _after_updates(problem, instance, seed)
        seconds.append(time.process_time() - began)
    return {"one": kernels[0].seconds, "after": kernels[1].seconds, "seconds": seconds[1]}


def _learned(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """PPO's updates from the rule like XLA's alone."""
    return {"value": _after_updates(problem, _begun(xla_like(problem)), seed).seconds}


def _after_updates(problem: FusionProblem, instance: CompileParams, seed: int) -> Fusion:
    """Best plan drawn during updates of an untrained policy on an instance."""
    policy = untrained(FusingPolicy, settings_of("fusion"), seed)
    return fused(problem, fine_tune(policy.config, policy.params, instance, jax.random.key(seed), UPDATES)[1])


def _begun(fusion: Fusion) -> CompileParams:
    return begun(fusion, ONE_DEVICE, settings_of("fusion"))


def _best(policy: FusingPolicy, problem: FusionProblem, *, rounds: int, samples: int, seed: int) -> Fusion:
    def cost(choices: Choices) -> float:
        return fused(problem, choices).seconds

    begins = _begun(xla_like(problem))
    return fused(problem, best_drawn(policy, begins, cost, rounds=rounds, samples=samples, seed=seed))


def _policy(settings: Settings) -> FusingPolicy:
    """Policy that imitates `flips` on programs of the zoo, learned once."""
    most, steps = (QUICK_LESSONS, QUICK_STEPS) if settings.quick else (LESSONS, STEPS)
    file = once(settings.out / "policies" / "fusion.msgpack", lambda: imitator(_programs(most), steps))
    return FusingPolicy.load(file)


def _programs(most_ops: int) -> list[FusionProblem]:
    """One training step of each architecture with at most `most_ops` ops."""
    prepare()
    by_name = {entry.architecture: entry.name for entry in zoo.select(PROGRAMS) if entry.ops <= most_ops}
    return [fusion_problem(zoo.load(name).graph, CHIP) for name in by_name.values()]


class Lesson(NamedTuple):
    """One program."""

    instance: CompileParams
    inlined: np.ndarray  # [n] int32, the final choices of `flips`
    weight: np.ndarray  # [n] float32, their sum is 1


def imitator(problems: Sequence[FusionProblem], steps: int) -> FusingPolicy:
    """Trains a policy by imitation for a number of steps, each on one program."""
    began = time.perf_counter()
    policy = untrained(FusingPolicy, settings_of("fusion", changes=0.0))
    settings, params = policy.config, policy.params
    lessons = _lessons(problems, settings)
    moments, rng = _optimiser(settings, steps).init(params), np.random.default_rng(0)
    for step in range(steps):
        if step % len(lessons) == 0:
            order = rng.permutation(len(lessons))
        params, moments = _step(settings, steps, params, moments, lessons[order[step % len(lessons)]])
    note = f"{steps} steps of imitation on {len(lessons)} programs, {time.perf_counter() - began:.0f} s"
    return FusingPolicy(settings, jax.tree.map(np.asarray, params), note)


def _lessons(problems: Sequence[FusionProblem], settings: GoSettings) -> list[Lesson]:
    """A lesson for each problem; all are padded to the same sizes."""
    to = common_sizes([problem.graph for problem in problems])
    fusion_to = fusion_sizes(problems, to)
    lessons = []
    for problem in problems:
        best, rest = flips(problem), (0, to.ops - problem.num_ops)
        costs = np.where(problem.legal, np.maximum(flip_costs(best), 0), 0)
        weight = np.minimum(costs, LARGEST * costs[np.isfinite(costs) & problem.legal].mean())
        inlined = np.pad(best.inlined, rest).astype(np.int32)
        weight = np.pad(weight / weight.sum(), rest).astype(np.float32)
        instance = begun(xla_like(problem), ONE_DEVICE, settings, to, fusion_to)
        lessons.append(Lesson(instance, inlined, weight))
    return lessons


def _optimiser(settings: GoSettings, steps: int) -> optax.GradientTransformation:
    return learner.optimiser(optax.cosine_decay_schedule(RATE, steps), settings.ppo.gradient_norm)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(settings: GoSettings, steps: int, params: Any, moments: Any, lesson: Lesson) -> tuple[Any, Any]:
    gradient = jax.grad(functools.partial(imitation_loss, settings))(params, lesson)
    return learner.gradient_step(_optimiser(settings, steps), params, moments, gradient)


def imitation_loss(settings: GoSettings, params: Any, lesson: Lesson) -> jax.Array:
    """Weighted cross-entropy of the policy against the choices to imitate, in nats: `[]` float32."""
    instance = jax.tree.map(jnp.asarray, lesson.instance)
    observation = observe(instance, instance.start, settings.network.tasks, no_features(instance))
    logits: Any = networks(settings.network).policy.apply(params, observation)
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits["fusion"]), lesson.inlined[:, None], -1)[:, 0]
    return -(likely * lesson.weight).sum()
