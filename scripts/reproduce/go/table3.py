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
from graphrl.envs.compile.generator import Choices, CompileInstance, fusion_sizes
from graphrl.envs.compile.observation import observe
from graphrl.graphs.datasets import zoo
from graphrl.graphs.padding import common_sizes
from graphrl.learning import learner
from graphrl.solvers.fusion.flips import flip_costs, prepare
from graphrl.solvers.fusion.rules import flips, fuse_by, xla_like
from reproduce.go.fusion import CHIP, FusingPolicy, best_drawn, fused, initial, milliseconds, problem_of, settings_of
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.policies import cached_policy, untrained
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
IMITATED_OPS, STEPS = 7_500, 900  # most ops of an imitated program, and steps of imitation
QUICK_IMITATED_OPS, QUICK_STEPS = 100, 4
HOW = (
    "Milliseconds of all kernels in sequence on one V100, and CPU seconds of some columns. A framework's default is "
    "`none` (each op a kernel), `single` (values with one reader are computed in it) or `xla` (also values at least 8 "
    "times as large as their inputs); `flips` toggles the inlining of single ops while that helps, and `anneal` is "
    "simulated annealing from there, 2 million flips. GO starts from `xla`. `go` is the best of 64 plans of a policy "
    "that has learned the results of `flips` on the zoo's training steps, without the workload. `go-one` learns on the "
    f"workload alone, by {UPDATES} updates of PPO, 32 plans each; `untrained` draws an equal number of plans in equal "
    "rounds, each around the best so far; and `go, go-one` starts these updates from the plan of `go`. The four are "
    f"means over the seeds on graphs of at most {MOST_OPS:,} ops; on larger ones `go` and `go-one` are of seed 0, and "
    "the others were not run. Seconds of policies exclude compilation; the last are of the updates alone."
)


def table3(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each workload."""
    lines, values = list[list[str]](), list[list[float | None]]()
    for name in settings.workloads:
        keys = [{"fusion": name, "rule": rule} for rule in RULES]
        row = [settings.measurements.get(key, functools.partial(_by_rule, name, key["rule"])) for key in keys]
        if figures := [one for one in row if one is not None and all(row)]:
            every = [*figures, *_by_policy(settings, name)]
            values.append([one["value"] if one else None for one in every])
            seconds = [f"{one['seconds']:.1f}" if one else "-" for one in (*figures[-2:], *every[-2:])]
            lines.append([name, f"{figures[0]['ops']:,}", *map(milliseconds, every), *seconds])
    columns = (*RULES, *COLUMNS)
    notes = [*_against("xla", columns, values, columns), *_against("flips", columns, values, COLUMNS)]
    notes.append(f"policy of `go`: {_policy(settings).note}")
    headings = ("workload", "ops", *(f"`{column}`" for column in columns), *(f"`{column}`, s" for column in TIMED))
    main = [note for note in notes if note.startswith(("`flips` against `xla`", "`go` against `xla`"))]
    summary = f"Time of the kernels, {'; '.join(main)}."
    yield settings.measurements.table("Fusion alone", HOW, markdown(headings, lines), notes=notes, summary=summary)


def in_one_shot(settings: Settings, problem: FusionProblem, seed: int = 0) -> Fusion:
    """Draws a batch of fusions from the policy; returns the best."""
    return _best(_policy(settings), problem, rounds=1, samples=SAMPLES, seed=seed)


def _against(
    other: str, columns: Sequence[str], rows: Sequence[Sequence[float | None]], compared: Sequence[str]
) -> Iterator[str]:
    """Yields ratios of some columns to another, over workloads that have both. Rows have all columns."""
    for column in compared:
        if column != other:
            pairs = ((row[columns.index(column)], row[columns.index(other)]) for row in rows)
            yield from against(f"`{column}` against `{other}`", pairs)


def _by_rule(name: str, rule: str) -> Figures:
    prepare()
    problem, started = problem_of(name), time.thread_time()
    return {"ops": problem.num_ops, "value": fuse_by(rule, problem).seconds, "seconds": time.thread_time() - started}


def _by_policy(settings: Settings, name: str) -> list[Figures | None]:
    """Returns figures of `COLUMNS`, means over the seeds; None where nothing was run."""
    seeds = settings.seeds if problem_of(name).num_ops <= MOST_OPS else 1

    def column(policy: str, measure: Callable[[Settings, FusionProblem, int], Figures]) -> Figures | None:
        runs = settings.of_seeds(
            {"fusion": name, "policy": policy}, lambda seed: measure(settings, problem_of(name), seed), seeds
        )
        if len(runs) < seeds:
            return None
        return {what: statistics.mean(one[what] for one in runs) for what in runs[0]}

    drawn = column("go", _drawn)
    if settings.quick:
        return [None, None, drawn, None]
    if problem_of(name).num_ops > MOST_OPS:
        return [None, column("go-one", _learned), drawn, None]
    both = column("updates", _updated)
    one, after = ({"value": both[part], "seconds": both["seconds"]} if both else None for part in ("one", "after"))
    return [column("untrained", _untrained), one, drawn, after]


def _untrained(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Returns the best plan of the untrained policy, with PPO's number of plans and rounds."""
    policy = untrained(FusingPolicy, settings_of("fusion"), seed)
    samples = policy.config.ppo.environments
    return {"value": _best(policy, problem, rounds=UPDATES, samples=samples, seed=seed).seconds}


def _drawn(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Draws plans in one shot and returns the best; the time excludes compilation of the network for the size."""
    _best(_policy(settings), problem, rounds=1, samples=1, seed=seed)
    started = time.process_time()
    value = in_one_shot(settings, problem, seed).seconds
    return {"value": value, "seconds": time.process_time() - started}


def _updated(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Runs PPO's updates from the rule like XLA's, and from the policy's plan.

    Only the second run is timed, because it reuses the program that the first one compiled.
    """
    seconds = list[float]()
    kernels = [xla_like(problem), in_one_shot(settings, problem, seed)]
    for number, fusion in enumerate(kernels):
        instance, started = _start(fusion), time.process_time()
        kernels[number] = _after_updates(problem, instance, seed)
        seconds.append(time.process_time() - started)
    return {"one": kernels[0].seconds, "after": kernels[1].seconds, "seconds": seconds[1]}


def _learned(settings: Settings, problem: FusionProblem, seed: int) -> Figures:
    """Runs PPO's updates from the rule like XLA's alone."""
    return {"value": _after_updates(problem, _start(xla_like(problem)), seed).seconds}


def _after_updates(problem: FusionProblem, instance: CompileInstance, seed: int) -> Fusion:
    """Returns the best plan drawn during updates of an untrained policy on an instance."""
    policy = untrained(FusingPolicy, settings_of("fusion"), seed)
    return fused(problem, fine_tune(policy.config, policy.params, instance, jax.random.key(seed), UPDATES)[1])


def _start(fusion: Fusion) -> CompileInstance:
    return initial(fusion, ONE_DEVICE, settings_of("fusion"))


def _best(policy: FusingPolicy, problem: FusionProblem, *, rounds: int, samples: int, seed: int) -> Fusion:
    def cost(choices: Choices) -> float:
        return fused(problem, choices).seconds

    start = _start(xla_like(problem))
    return fused(problem, best_drawn(policy, start, cost, rounds=rounds, samples=samples, seed=seed))


def _policy(settings: Settings) -> FusingPolicy:
    """Returns the policy that imitates `flips` on programs of the zoo, learned once."""
    most, steps = (QUICK_IMITATED_OPS, QUICK_STEPS) if settings.quick else (IMITATED_OPS, STEPS)
    file = cached_policy(settings.out / "policies" / "fusion.msgpack", lambda: imitator(_programs(most), steps))
    return FusingPolicy.load(file)


def _programs(most_ops: int) -> list[FusionProblem]:
    """Returns one training step of each architecture with at most `most_ops` ops."""
    prepare()
    by_name = {entry.architecture: entry.name for entry in zoo.select(PROGRAMS) if entry.ops <= most_ops}
    return [fusion_problem(zoo.load(name).graph, CHIP) for name in by_name.values()]


class Target(NamedTuple):
    """A program to imitate: its instance, choices and their weights."""

    instance: CompileInstance
    inlined: np.ndarray  # [n] int32, the final choices of `flips`
    weight: np.ndarray  # [n] float32, their sum is 1


def imitator(problems: Sequence[FusionProblem], steps: int) -> FusingPolicy:
    """Trains a policy by imitation for a number of steps, each on one program."""
    started = time.perf_counter()
    policy = untrained(FusingPolicy, settings_of("fusion", changes=0.0))
    settings, params = policy.config, policy.params
    targets = _targets(problems, settings)
    moments, rng = _optimiser(settings, steps).init(params), np.random.default_rng(0)
    for step in range(steps):
        if step % len(targets) == 0:
            order = rng.permutation(len(targets))
        params, moments = _step(settings, steps, params, moments, targets[order[step % len(targets)]])
    note = f"{steps} steps of imitation on {len(targets)} programs, {time.perf_counter() - started:.0f} s"
    return FusingPolicy(settings, jax.tree.map(np.asarray, params), note)


def _targets(problems: Sequence[FusionProblem], settings: GoSettings) -> list[Target]:
    """Returns a target for each problem; all are padded to the same sizes."""
    to = common_sizes([problem.graph for problem in problems])
    fusion_to = fusion_sizes(problems, to)
    targets = []
    for problem in problems:
        best, rest = flips(problem), (0, to.ops - problem.num_ops)
        costs = np.where(problem.legal, np.maximum(flip_costs(best), 0), 0)
        weight = np.minimum(costs, LARGEST * costs[np.isfinite(costs) & problem.legal].mean())
        inlined = np.pad(best.inlined, rest).astype(np.int32)
        weight = np.pad(weight / weight.sum(), rest).astype(np.float32)
        instance = initial(xla_like(problem), ONE_DEVICE, settings, to, fusion_to)
        targets.append(Target(instance, inlined, weight))
    return targets


def _optimiser(settings: GoSettings, steps: int) -> optax.GradientTransformation:
    return learner.optimiser(optax.cosine_decay_schedule(RATE, steps), settings.ppo.max_grad_norm)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(settings: GoSettings, steps: int, params: Any, moments: Any, target: Target) -> tuple[Any, Any]:
    gradient = jax.grad(functools.partial(imitation_loss, settings))(params, target)
    return learner.gradient_step(_optimiser(settings, steps), params, moments, gradient)


def imitation_loss(settings: GoSettings, params: Any, target: Target) -> jax.Array:
    """Computes the weighted cross-entropy of the policy against the choices to imitate, in nats: `[]` float32."""
    instance = jax.tree.map(jnp.asarray, target.instance)
    observation = observe(instance, instance.start, settings.network.tasks, no_features(instance))
    logits: Any = networks(settings.network).policy.apply(params, observation)
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits["fusion"]), target.inlined[:, None], -1)[:, 0]
    return -(likely * target.weight).sum()
