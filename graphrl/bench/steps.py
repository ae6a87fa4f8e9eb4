"""Steps a second of parallel environments, by environment, policy, graph size and number of environments.

A program is `jax.vmap` of the policy and `env.step`, in a scan of up to `MAX_STEPS` steps after a reset; resets are not
timed. (A policy whose network is called once an episode plays whole episodes, with that call.) On CPUs, programs that
call compiled functions take turns with the same in pure JAX. The policy "gymnasium" is a Python loop over gymnasium's
adapter instead, which includes resets.

Every environment gets an equal share of the time limit. Cells that would exceed it are left out. A cell with a call of
more than `MAX_CALL` seconds, or without enough memory, has a row with the reason instead of a rate.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from graphrl.bench import machine
from graphrl.bench.cases import Measured, Settings
from graphrl.bench.envs import (
    Instances,
    Policy,
    PolicyName,
    find,
    gymnasium_steps,
    make_graphs,
    make_instances,
    random_policy,
)
from graphrl.bench.report import STEPS_TABLE, models_table
from graphrl.bench.timing import (
    BY_GRAPH,
    Limit,
    Log,
    Samples,
    check_counts,
    compile_program,
    interleaved,
    repeated_calls,
    timed,
)
from graphrl.compiled.custom_call import pure_jax
from graphrl.envs.adapters.common import import_library
from graphrl.errors import GraphrlError, ProblemError
from graphrl.units import format_bytes

COUNTS = 1, 16, 256, 4096
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
DEFAULT_POLICIES = POLICIES[:2]
MAX_ENVS = 1 << 16
MAX_STEPS = 64  # steps of an episode that are timed
MAX_CALL = 4.0  # seconds; a rate takes several calls
MARGIN = 1.2  # by which predictions of time are multiplied
FIRST_SECONDS = 15.0  # expected time of the first cell of an environment and policy, most of it compiling
SHARE_OF_MEMORY = 0.8  # of the free memory that a batch may take
_CALLS = "graphrl_"  # in the names of compiled functions that programs call


class Cell(NamedTuple):
    """One rate to measure."""

    env: str
    policy: PolicyName
    ops: int  # requested number of ops, or that of the model
    envs: int  # number of parallel environments
    model: str = ""  # file or name; "": random graphs

    def __str__(self) -> str:
        graph = self.model or f"{self.ops:,} ops"
        return f"{self.env}, {graph}, {self.envs:,} environment{'s' * (self.envs > 1)}, {self.policy}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRow(Measured):
    """A table row: the steps a second in a cell. None: not measured."""

    env: str  # environment id
    policy: str  # "random", "network" of the environment's agent, or "gymnasium": random through its adapter
    size: int  # requested number of ops, or that of the model
    n: int  # number of ops in each graph
    envs: int  # number of parallel environments
    steps: int  # number of steps of each environment in a call
    model: str = ""  # file or name of a model; "": random graphs
    steps_per_s: float | None = None  # of all environments, from the median time
    s_per_million_steps: float | None = None
    jax_steps_per_s: float | None = None  # in pure JAX; None if the program is the same
    ratio_to_jax: float | None = None  # steps_per_s / jax_steps_per_s
    compile_s: float | None = None  # time to trace and compile, without a cache
    call_s: float | None = None  # wall seconds of a call, median
    skipped: str = ""  # the reason why nothing was measured


def cells(
    env: str, graphs: Sequence[tuple[int, str]], counts: Sequence[int], policies: Sequence[PolicyName]
) -> list[Cell]:
    """Lists the cells of an environment, the most telling ones first.

    Graphs are pairs of a number of ops and a model, "" for random graphs.

    Small graphs and numbers of environments come first, larger ones a place later each, as do the cells of the network.
    A single environment comes last.
    """
    counts = sorted(counts, key=lambda count: (count == 1, count))
    places = [
        (i + j + k, k, j, Cell(env, policy, size, count, model))
        for i, count in enumerate(counts)
        for j, (size, model) in enumerate(sorted(graphs))
        for k, policy in enumerate(sorted(policies, key=POLICIES.index))
    ]
    return [cell for *_, cell in sorted(places, key=lambda place: place[:3])]


class Steps:
    """The benchmark of environments.

    Args:
      settings: settings of the run; its sizes are those of the graphs.
      envs: ids of the environments.
      counts: numbers of parallel environments.
      policies: names of the policies.
      models: files or names of models to measure instead of random graphs; see `graphs.datasets.sets.load_graph`.

    Raises:
      GraphrlError: an environment is not known, a model cannot be read, or gymnasium is not installed.
      ProblemError: a value is out of range, or given twice.
    """

    def __init__(
        self,
        settings: Settings,
        envs: Sequence[str],
        counts: Sequence[int],
        policies: Sequence[PolicyName] = DEFAULT_POLICIES,
        models: Sequence[str] = (),
    ) -> None:
        loaders = {id: find(id).load for id in envs}
        self._models = {id: {model: load(model) for model in models} for id, load in loaders.items()}
        check_counts("counts", counts, MAX_ENVS)
        for name, values, known in (("environments", envs, ()), ("policies", policies, POLICIES)):
            if len(set(values)) < len(values) or not values or (known and not set(values) <= set(known)):
                fault = f"must be one or more of {', '.join(known)}, each once" if known else "must list each once"
                raise ProblemError(f"{name} are {', '.join(values) or 'none'}: {fault}")
        for env in envs:
            if find(env).network is None and tuple(policies) == ("network",):
                raise ProblemError(f"{env} has no network: leave --policies out, or take random or gymnasium")
        if "gymnasium" in policies:
            import_library("gymnasium", "gymnasium")
        self._settings, self._counts = settings, counts
        self.table = models_table(models) if models else STEPS_TABLE
        self._cells = {}
        for env, graphs in self._models.items():
            sizes = [(find(env).ops(graph), model) for model, graph in graphs.items()]
            played = [policy for policy in policies if policy != "network" or find(env).network is not None]
            self._cells[env] = cells(env, sizes or [(size, "") for size in settings.sizes], counts, played)
        self.titles = [str(cell) for of_env in self._cells.values() for cell in of_env]

    def measure(self, limit: Limit, log: Log) -> Iterator[list[StepRow]]:
        """Measures the cells in turn, as far as the limit allows, and yields their rows.

        Raises:
          ProblemError: jax has fewer devices than threads.
          GraphrlError: an episode has not the expected length.
        """
        with machine.pinned(self._settings.threads) as pinned:
            machine.configure(self._settings.threads)
            first_seconds = FIRST_SECONDS
            for number, (env, of_env) in enumerate(self._cells.items()):
                share = limit.share(len(self._cells) - number)
                models = self._models[env]
                bench = _Environment(self._settings, env, models, max(self._counts), pinned, first_seconds)
                for cell in of_env:
                    # every environment has a row, if there is any time left
                    is_first = cell == of_env[0] and (number == 0 or limit.left > 0)
                    if is_first or bench.seconds(cell) <= share.left:
                        yield [bench.row(cell, log)]
                    else:
                        limit.left_out += 1
                first_seconds = max(first_seconds, bench.first_seconds)


class _Environment:
    """Measures the cells of one environment, and predicts the time of a cell from those measured before."""

    def __init__(
        self,
        settings: Settings,
        id: str,
        models: Mapping[str, Any],
        most: int,
        pinned: bool,
        first_seconds: float,
    ) -> None:
        self._settings, self._id, self._models, self._most, self._pinned = settings, id, models, most, pinned
        self.first_seconds = first_seconds  # expected time of the first cell of a policy; later, the longest one
        self._firsts: dict[tuple[int, str], First] = {}  # by number of ops and model
        self._taken: dict[Cell, tuple[float, float]] = {}  # seconds of a call, and of the whole cell

    def row(self, cell: Cell, log: Log) -> StepRow:
        """Measures a cell, or returns the row of a cell that takes too long or too much memory."""
        if self._nearest(cell) is None and cell.envs > 16:  # the first one could take hours
            self._measure(cell._replace(envs=1), lambda _: log(f"{cell}: trying one environment"))
        call = self._call_seconds(cell)
        if call > MAX_CALL:
            return self._row(cell, skipped=f"a call would take about {call:.0f} s")
        return self._measure(cell, log)

    def seconds(self, cell: Cell) -> float:
        """Predicts the seconds that a cell takes."""
        if (nearest := self._nearest(cell)) is None:
            return self.first_seconds
        (call, whole), next_call = self._taken[nearest], self._call_seconds(cell)
        if next_call > MAX_CALL:
            return 0.0  # not measured
        return MARGIN * (whole + (next_call - call) * 2 * (self._settings.repeats + 2))

    def _nearest(self, cell: Cell) -> Cell | None:
        """Returns the measured cell that is nearest to this one, of those with no more ops and environments."""
        below = [
            one for one in self._taken if one.policy == cell.policy and one.ops <= cell.ops and one.envs <= cell.envs
        ]
        return max(below, key=lambda one: (one.ops, one.envs), default=None)

    def _call_seconds(self, cell: Cell) -> float:
        """Predicts the seconds of a call: in proportion to ops and environments, on accelerators to roots of them."""
        if (nearest := self._nearest(cell)) is None:
            return 0.0
        growth = cell.envs / nearest.envs * cell.ops / nearest.ops
        return self._taken[nearest][0] * (growth if jax.default_backend() == "cpu" else math.sqrt(growth))

    def _measure(self, cell: Cell, log: Log) -> StepRow:
        log(f"{cell}: preparing")
        started = time.perf_counter()
        kind = _Adapted if cell.policy == "gymnasium" else _Program
        program = kind(cell, self._first(cell), self._settings, log)
        if not program.fits:
            return self._row(cell, skipped=f"needs {format_bytes(program.num_bytes)} of memory")
        log(f"{cell}: timing")
        samples, clock = program.samples(), machine.clock(self._pinned)
        ours, *jax_rate = [taken.per_second(clock) for taken in samples]
        call = cell.envs * program.steps / samples[0].per_second("wall")
        self._taken[cell] = call, time.perf_counter() - started
        self.first_seconds = max(self.first_seconds, self._taken[cell][1])
        return self._row(
            cell,
            steps_per_s=ours,
            s_per_million_steps=1e6 / ours,
            jax_steps_per_s=jax_rate[0] if jax_rate else None,
            ratio_to_jax=ours / jax_rate[0] if jax_rate else None,
            compile_s=program.compile_s,
            call_s=call,
        )

    def _first(self, cell: Cell) -> "First":
        """Returns the instances of the cell's size after a reset."""
        place = cell.ops, cell.model
        if place not in self._firsts:
            seed = self._settings.seed
            graphs = [self._models[cell.model]] if cell.model else make_graphs(self._id, cell.ops, self._most, seed)
            self._firsts[place] = after_reset(make_instances(self._id, graphs), seed)
        return self._firsts[place]

    def _row(self, cell: Cell, **fields: Any) -> StepRow:
        instances = self._first(cell).instances
        return StepRow(
            what="steps",
            threads=self._settings.threads,
            pinned=self._pinned,
            device_kind=machine.device_name(),
            jax=jax.__version__,
            repeats=self._settings.repeats,
            clock=machine.clock(self._pinned),
            env=cell.env,
            policy=cell.policy,
            size=cell.ops,
            n=instances.ops,
            envs=cell.envs,
            steps=_timed_steps(cell, instances),
            model=cell.model,
            **fields,
        )


class _Program:
    """Rollouts of a cell, compiled; on CPUs also in pure JAX, where that differs."""

    def __init__(self, cell: Cell, first: "First", settings: Settings, log: Log) -> None:
        self._cell, self._settings = cell, settings
        instances = first.instances
        self.steps = _timed_steps(cell, instances)
        self._is_whole = self.steps == instances.episode
        self._mesh = machine.make_mesh(settings.threads, cell.envs)
        self._sharding = NamedSharding(self._mesh, BY_GRAPH)
        network_params = instances.network_params if cell.policy == "network" else ()
        self._rows = first.keys, first.state, first.changed, instances.batch, network_params
        # the batch is made on the host
        self.num_bytes = 2 * _batch_bytes(self._rows, cell)
        self.compile_s = 0.0
        self._programs: list[jax.stages.Compiled] = []
        if self.fits:
            log(f"{cell}: compiling")
            self._compile(rollout(first, _policy(cell, instances, settings.seed), self.steps))

    @property
    def fits(self) -> bool:
        """True if there is enough memory."""
        return _fits(self.num_bytes)

    def samples(self) -> list[Samples]:
        """Times the programs in turns.

        Raises:
          GraphrlError: episodes have ended too early, or not at all.
        """
        index = np.arange(self._cell.envs) % len(self._rows[0])
        arguments = jax.device_put(jax.tree.map(lambda leaf: leaf[index], self._rows), self._sharding)
        for program in self._programs:
            done = program(*arguments)[0]
            if not bool((done == self._is_whole).all()):
                raise GraphrlError(f"{self._cell.env}: {self.steps} steps are not an episode, or a part of one")
        evaluations = self._cell.envs * self.steps
        runs = [repeated_calls(program, arguments, evaluations) for program in self._programs]
        return interleaved(runs, self._settings.repeats, self._settings.seconds)

    def _compile(self, play: Callable[..., Any]) -> None:
        local = jax.shard_map(play, mesh=self._mesh, in_specs=BY_GRAPH, out_specs=BY_GRAPH, check_vma=False)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self._cell.envs, *leaf.shape[1:]), leaf.dtype, sharding=self._sharding),
            self._rows,
        )
        compiled, self.compile_s = compile_program(local, *shapes)
        self._programs.append(compiled)
        used = compiled.memory_analysis()
        if used is not None:
            each = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
            self.num_bytes = self.num_bytes // 2 + each * self._mesh.size
        # with a network only random actions are compared: its time is the same in both
        if self.fits and self._cell.policy == "random" and _CALLS in (compiled.as_text() or ""):
            with pure_jax():
                self._programs.append(compile_program(local, *shapes)[0])


class _Adapted:
    """Steps of a cell through gymnasium's adapter; `compile_s` includes a reset and a step."""

    steps = 1

    def __init__(self, cell: Cell, first: "First", settings: Settings, log: Log) -> None:
        self._settings = settings
        observed = first.state, first.changed, first.instances.batch
        # the instances, and observations of two steps: before and after a reset, on the device and as NumPy arrays
        self.num_bytes = 9 * _batch_bytes(observed, cell)
        self.fits, self.compile_s = _fits(self.num_bytes), 0.0
        if self.fits:
            log(f"{cell}: compiling")
            started = time.perf_counter()
            self._work = gymnasium_steps(first.instances, cell.envs, settings.seed)
            self._work(1)
            self.compile_s = time.perf_counter() - started

    def samples(self) -> list[Samples]:
        """Times the steps."""
        return interleaved([timed(self._work)], self._settings.repeats, self._settings.seconds)


def _batch_bytes(rows: Any, cell: Cell) -> int:
    """Returns the bytes of arrays with a leading axis of instances, for the environments of the cell."""
    leaves = jax.tree.leaves(rows)
    return sum(leaf.nbytes // len(leaf) for leaf in leaves) * cell.envs


def _fits(num_bytes: int) -> bool:
    return num_bytes <= SHARE_OF_MEMORY * machine.free_bytes()


class First(NamedTuple):
    """Instances after a reset."""

    instances: Instances
    keys: jax.Array  # [g]
    state: Any  # leading axis g
    changed: list[jax.Array]  # leaves of the observation that steps change, leading axis g
    structure: Any  # of the observation
    sources: list[int | None]  # for each leaf of the observation, its place in the instance's leaves; None: it changes


def after_reset(instances: Instances, seed: int) -> First:
    """Resets the environments, and finds the leaves of observations that steps compute, and do not take from the
    instance. Only these are carried from step to step: copies of the others could take longer than the step.
    """
    env, batch = instances.env, instances.batch
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(batch)[0]))
    state, timestep = jax.jit(jax.vmap(env.reset))(keys, batch)
    spec = env.action_spec(jax.tree.map(lambda leaf: leaf[0], batch))
    actions = jax.tree.map(lambda one: np.zeros((len(keys), *one.shape), one.dtype), spec)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (batch, keys, state, actions))
    trace = jax.make_jaxpr(lambda batch, *rest: env.step(*rest, batch)[1].observation)(*shapes).jaxpr
    given = trace.invars[: len(jax.tree.leaves(batch))]
    sources = [next((i for i, one in enumerate(given) if one is leaf), None) for leaf in trace.outvars]
    leaves, structure = jax.tree.flatten(timestep.observation)
    changed = [leaf for leaf, source in zip(leaves, sources, strict=True) if source is None]
    return First(instances, keys, state, changed, structure, sources)


def _policy(cell: Cell, instances: Instances, seed: int) -> Policy:
    network = find(cell.env).network
    if cell.policy == "network" and network is not None:
        return network(instances.env, seed)
    return random_policy(instances.env)


def _timed_steps(cell: Cell, instances: Instances) -> int:
    if cell.policy == "gymnasium":
        return _Adapted.steps
    is_whole = cell.policy == "network" and find(cell.env).is_once
    return instances.episode if is_whole else min(instances.episode, MAX_STEPS)


def rollout(first: First, policy: Policy, steps: int) -> Callable[..., Any]:
    """Returns a function that plays `steps` steps of a batch of environments after a reset.

    It maps keys, states, changed leaves of observations, and parameters of `Instances` to done flags `[g]`, sums of
    rewards `[g]`, and the changed leaves of the last observations, so that XLA removes no part of a step.
    """
    step = jax.vmap(first.instances.env.step)

    def play(keys: jax.Array, state: Any, changed: list[jax.Array], batch: Any, network_params: Any) -> Any:
        prepared, given = policy.prepare(keys, batch, network_params), jax.tree.leaves(batch)

        def advance(carry: Any, number: jax.Array) -> Any:
            state, changed, total, _ = carry
            new = iter(changed)
            leaves = [next(new) if source is None else given[source] for source in first.sources]
            now = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            action = policy.act(now, prepared, first.structure.unflatten(leaves))
            state, timestep = step(now, state, action, batch)
            leaves = jax.tree.leaves(timestep.observation)
            changed = [leaf for leaf, source in zip(leaves, first.sources, strict=True) if source is None]
            return (state, changed, total + timestep.reward, timestep.done), None

        carry = state, changed, jnp.zeros(len(keys)), jnp.zeros(len(keys), bool)
        if steps == 1:  # without a loop, which has a cost
            carry, _ = advance(carry, jnp.int32(0))
        else:
            carry, _ = lax.scan(advance, carry, jnp.arange(steps, dtype=jnp.int32))
        _, changed, total, done = carry
        return done, total, changed

    return play
