"""Graphs for a learner: training batches by step, held-out batches, one compiled program a size bucket.

`made_ahead` prepares the next batches while the device works on the current one.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import FAMILIES
from graphrl.graphs.datasets.sets import GeneratedSet, generated_set, in_both, load_graphs
from graphrl.graphs.datasets.zoo import augmented
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes

Shared = Literal["graphs", "individuals"]


class Padded(Protocol):
    """Sizes that graphs are padded to."""

    @property
    def ops(self) -> int:
        """Of a graph."""

    def covers(self, other: Self) -> bool:
        """Whether a graph of sizes `other` fits."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which graphs, and how they come. Sets are as in `graphrl compare`: files, folders, `layered:500x20`,
    `zoo:training/hlo/train-split`, and `regal-like:x400@10000`, which is 400 graphs with seeds from 10000.

    Attributes:
      train, validation, test: sets of graphs; no graph of one may be in another. `test` is what `graphrl evaluate`
        takes if it is given no graphs, and is not read before: what tells its graphs are the names of sets and files.
      graphs: of a batch, g.
      buckets: the training graphs are sorted by ops and cut into so many groups of one padded size each.
      curriculum: steps until all groups take part: first the smallest graphs only, then group by group the larger.
      augment: whether every training graph gets new sizes and run times each time (`zoo.augmented`).
      fresh: whether no training graph comes twice: the seeds of the sets of `train`, which must be generated, walk on
        with the step, and `buckets` does not count, for each set is one. How many graphs a set has by its name says how
        often it is drawn, and their sizes what its batches are padded to.
      ahead: training batches that a thread makes while the device works on those before.

    Raises:
      ProblemError: a value is out of range.
    """

    train: tuple[str, ...] = ("regal-like:x400@10000",)
    validation: tuple[str, ...] = ("regal-like:x32@5000",)
    test: tuple[str, ...] = ("regal-like:x200",)
    graphs: int = 8
    buckets: int = 3
    curriculum: int = 0
    augment: bool = False
    fresh: bool = False
    ahead: int = 2

    def __post_init__(self) -> None:
        for name, least in (("graphs", 1), ("buckets", 1), ("curriculum", 0), ("ahead", 0)):
            value = getattr(self, name)
            if not least <= value < 2**31:
                raise ProblemError(f"data.{name} is {value!r}: must be at least {least}")


class Batch(NamedTuple):
    """Some graphs of one size bucket.

    Attributes:
      names: of all g graphs.
      sizes: that they are padded to.
      rows: pytree of NumPy arrays with a leading axis: those graphs that this process makes.
    """

    names: tuple[str, ...]
    sizes: Padded
    rows: Any


class _Bucket(NamedTuple):
    graphs: tuple[ComputationGraph, ...]
    sizes: Padded
    source: GeneratedSet | None = None  # of fresh graphs


Build = Callable[[Sequence[ComputationGraph], Any], Any]
Load = Callable[[Sequence[str]], list[ComputationGraph]]
Common = Callable[[Sequence[ComputationGraph]], Padded]


class Data:
    """Batches as pure functions of the settings, the seed and the step, whatever was asked for before."""

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        build: Build,
        own: range,
        *,
        load: Load = load_graphs,
        common: Common = common_sizes,
        shared: Shared = "graphs",
    ) -> None:
        """Reads and makes the graphs.

        Args:
          config: which.
          seed: of the choice of graphs; the graphs themselves are those of their sets.
          build: `Agent.batch` of the settings.
          own: rows of each batch that this process makes.
          load, common, shared: `load`, `sizes` and `shares` of the agent.

        Raises:
          GraphrlError: a set cannot be read.
          ProblemError: too few graphs, or one in both sets.
        """
        is_whole = shared == "individuals"
        if is_whole:
            config = _of_whole_sets(config)
        train, held_out = (load(names) for names in (config.train, config.validation))
        both = {graph.name for graph in train} & {graph.name for graph in held_out}
        _check_disjoint("train", "validation", min(both, default=None))
        for name in ("train", "validation"):
            _check_disjoint(name, "test", in_both(getattr(config, name), config.test))
        least, name = (1, "1") if config.fresh else (config.buckets, f"data.buckets ({config.buckets})")
        if len(train) < least or len(held_out) < config.graphs:
            raise ProblemError(
                f"{len(train)} training graphs and {len(held_out)} of validation: must be at least {name} and "
                f"data.graphs ({config.graphs})"
            )
        self._config, self._seed, self._build, self._own = config, seed, build, own
        self._common = common
        self._buckets = _walks(config, common) if config.fresh else _cut(train, config.buckets, common)
        self._held_out = _cut(held_out, len(held_out) // config.graphs, common)
        self._whole = self._everything() if is_whole else None
        self.ahead = config.ahead
        self.training_graphs, self.validation_graphs = len(train), config.graphs * len(self._held_out)

    def batch(self, step: int) -> Batch:
        """The training batch of a step, counted from 1.

        The bucket is drawn by its number of graphs, the graphs in it without repetition while there are enough; fresh
        ones have the seeds that follow those of the step before. Where these are larger than the bucket's own, the
        batch is padded to the next larger sizes. Where individuals share the work it is the whole set, smallest first.
        """
        if self._whole is not None:
            return self._whole
        config = self._config
        random = np.random.default_rng([self._seed, step])
        open_buckets = self._buckets[: self._open(step)]
        counts = np.array([len(bucket.graphs) for bucket in open_buckets])
        bucket = open_buckets[int(random.choice(len(counts), p=counts / counts.sum()))]
        n = len(bucket.graphs)
        chosen = random.choice(n, config.graphs, replace=n < config.graphs)
        noise = random.integers(2**31, size=config.graphs)
        graphs, to = [bucket.graphs[i] for i in chosen], bucket.sizes
        if bucket.source is not None:
            first = bucket.source.first + (step - 1) * config.graphs
            graphs = [bucket.source.graph(seed) for seed in range(first, first + config.graphs)]
            to = to if to.covers(self._common(graphs)) else self._common([*bucket.graphs, *graphs])
        own = [augmented(graphs[i], int(noise[i])) if config.augment else graphs[i] for i in self._own]
        return Batch(tuple(graph.name for graph in graphs), to, self._build(own, to))

    def validation(self) -> Iterator[Batch]:
        """All held-out graphs, smallest first, g a batch; what is left over of the largest is left out.

        A batch is padded to the first training bucket that holds it, so that its programs are compiled but once.
        """
        for bucket in self._held_out:
            graphs = bucket.graphs[: self._config.graphs]
            own = [graphs[i] for i in self._own]
            larger = (other.sizes for other in self._buckets if other.sizes.covers(bucket.sizes))
            to = next(larger, bucket.sizes)
            yield Batch(tuple(graph.name for graph in graphs), to, self._build(own, to))

    def _everything(self) -> Batch:
        (bucket,) = self._buckets
        names = tuple(graph.name for graph in bucket.graphs)
        return Batch(names, bucket.sizes, self._build(bucket.graphs, bucket.sizes))

    def _open(self, step: int) -> int:
        """How many of the buckets a step draws from: 1 at first, all from the step `curriculum` on."""
        if step >= self._config.curriculum:
            return len(self._buckets)
        return 1 + (step - 1) * len(self._buckets) // self._config.curriculum


def _of_whole_sets(config: DataConfig) -> DataConfig:
    """The settings where every batch is the whole training set.

    Raises:
      ProblemError: they ask for other graphs in each step.
    """
    for name in ("curriculum", "augment", "fresh"):
        if getattr(config, name):
            raise ProblemError(
                f"data.{name} is {getattr(config, name)}: an agent that plays all graphs in every step has none"
            )
    return dataclasses.replace(config, buckets=1)


def _cut(graphs: Sequence[ComputationGraph], groups: int, common: Common) -> list[_Bucket]:
    """Groups of nearly equal numbers of graphs, smallest ops first."""
    by_size = sorted(graphs, key=lambda graph: (len(graph.ops), graph.name))
    ends = [len(by_size) * i // groups for i in range(groups + 1)]
    cut = [tuple(by_size[begin:end]) for begin, end in itertools.pairwise(ends)]
    return [_Bucket(group, common(group)) for group in cut]


def _walks(config: DataConfig, common: Common) -> list[_Bucket]:
    """A bucket for each set of fresh graphs, smallest ops first."""
    sources = [generated_set(name) for name in config.train]
    for group in ("validation", "test"):
        for name in getattr(config, group):
            if name.partition(":")[0] in FAMILIES:
                _check_apart(generated_set(name), sources, f"{name} of data.{group}")
    sampled = [(source, load_graphs([name])) for source, name in zip(sources, config.train, strict=True)]
    buckets = [_Bucket(tuple(graphs), common(graphs), source) for source, graphs in sampled]
    return sorted(buckets, key=lambda bucket: bucket.sizes.ops)


def _check_disjoint(one: str, other: str, both: str | None) -> None:
    if both is not None:
        raise ProblemError(f"{both} is in data.{one} and in data.{other}: name sets that share no graph")


def _check_apart(held_out: GeneratedSet, sources: Sequence[GeneratedSet], name: str) -> None:
    for source in sources:
        if held_out.kind == source.kind and held_out.first + held_out.count > source.first:
            raise ProblemError(
                f"{name} is where the fresh graphs of data.train come to, whose seeds walk on from "
                f"{source.first}: must have lower seeds"
            )


T = TypeVar("T")


@contextlib.contextmanager
def made_ahead(make: Callable[[int], T], numbers: range, ahead: int) -> Iterator[Iterator[T]]:
    """What `make` gives for each of the numbers, in their order.

    A thread makes them: while it waits for the device, Python lets other threads run.

    Args:
      make: a function of the number alone.
      numbers: of what is wanted; the caller may stop before the last one.
      ahead: how many are made before they are asked for, which bounds the memory; 0 makes each when it is asked for.

    The iterator raises what `make` raises.
    """
    if ahead == 0:
        yield map(make, numbers)
        return
    pool = ThreadPoolExecutor(1, "graphrl-batches")
    try:
        yield _results(make, numbers, ahead, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(make: Callable[[int], T], numbers: range, ahead: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    waiting: collections.deque[Future[T]] = collections.deque(pool.submit(make, number) for number in numbers[:ahead])
    for number in numbers[ahead:]:
        item = waiting.popleft().result()
        waiting.append(pool.submit(make, number))
        yield item
    while waiting:
        yield waiting.popleft().result()
