"""Graphs for a learner: a training batch for each step, and held-out batches, with one padded size per size bucket, so
that each bucket needs one compiled program. `prefetched` prepares the next batches while the device works.
"""

import collections
import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.sets import GeneratedSet, generated_set, in_both, load_graphs
from graphrl.graphs.datasets.zoo import augmented
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes

Shared = Literal["graphs", "individuals"]


class Padded(Protocol):
    """Sizes to which graphs are padded."""

    @property
    def ops(self) -> int:
        """Padded number of ops per graph."""

    def covers(self, other: Self) -> bool:
        """True if a graph with sizes `other` can be padded to these sizes."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Settings that select graphs and form batches. Sets are as in `graphrl compare`: files, folders, `layered:500x20`,
    `zoo:training/hlo/train-split`, and `regal-like:x400@10000`, which is 400 graphs with seeds from 10000.

    Attributes:
      train: sets of training graphs; no graph may also be in `validation` or `test`.
      validation: sets of held-out graphs, on which the loop validates.
      test: default sets of `graphrl evaluate`. They are not read during training: graphs that are also in `train` or
        `validation` are found by the names of sets and files.
      graphs: g, the number of graphs in a batch.
      buckets: number of size buckets: the training graphs are sorted by number of ops and cut into groups with one
        padded size each.
      curriculum: number of steps until all buckets are used: training starts with the smallest graphs and adds the
        larger ones bucket by bucket.
      augment: True gives every training graph new sizes and run times each time (`zoo.augmented`).
      fresh: True generates new training graphs at every step: the seeds of the sets in `train`, which must be generated
        sets, increase with the step. `buckets` is ignored, since each set is one bucket. The number of graphs in a
        set's name weights how often it is drawn, and their sizes determine the padding of its batches; a new graph that
        exceeds it is left out.
      prefetch: number of training batches that a thread prepares while the device works on earlier ones.

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
    prefetch: int = 2

    def __post_init__(self) -> None:
        for name, least in (("graphs", 1), ("buckets", 1), ("curriculum", 0), ("prefetch", 0)):
            value = getattr(self, name)
            if not least <= value < 2**31:
                raise ProblemError(f"data.{name} is {value!r}: must be at least {least}")


class Batch(NamedTuple):
    """A batch of g graphs from one size bucket.

    Attributes:
      names: names of all g graphs.
      sizes: the sizes that the graphs are padded to.
      rows: pytree of NumPy arrays with a leading axis, for the graphs that this process builds.
    """

    names: tuple[str, ...]
    sizes: Padded
    rows: Any


class _Bucket(NamedTuple):
    graphs: tuple[ComputationGraph, ...]
    sizes: Padded
    source: GeneratedSet | None = None  # source of fresh graphs


Build = Callable[[Sequence[ComputationGraph], Any], Any]
Load = Callable[[Sequence[str]], list[ComputationGraph]]
Common = Callable[[Sequence[ComputationGraph]], Padded]
Generated = Callable[[str], GeneratedSet]


class Data:
    """The graphs of a run. Batches depend only on the settings, the seed and the step, not on earlier calls."""

    def __init__(
        self,
        config: DataConfig,
        seed: int,
        build: Build,
        own: range,
        *,
        load: Load = load_graphs,
        common: Common = common_sizes,
        generated: Generated = generated_set,
        shared: Shared = "graphs",
    ) -> None:
        """Loads and generates the graphs.

        Args:
          config: settings of the graphs.
          seed: seed for drawing graphs; the graphs themselves come from their sets.
          build: `Agent.batch` with the agent's settings.
          own: rows of each batch that this process builds.
          load, common, generated, shared: `load`, `sizes`, `generated` and `shares` of the agent.

        Raises:
          GraphrlError: a set cannot be read.
          ProblemError: there are too few graphs, or a graph is in two of the sets.
        """
        is_whole = shared == "individuals"
        if is_whole:
            config = _whole_set_config(config)
        train, held_out = (load(names) for names in (config.train, config.validation))
        if config.augment and not all(isinstance(graph, ComputationGraph) for graph in train):
            raise ProblemError("data.augment is True: must be False for an agent whose problems are not graphs")
        duplicates = {graph.name for graph in train} & {graph.name for graph in held_out}
        _check_disjoint("train", "validation", min(duplicates, default=None))
        for name in ("train", "validation"):
            _check_disjoint(name, "test", in_both(getattr(config, name), config.test, generated))
        least, name = (1, "1") if config.fresh else (config.buckets, f"data.buckets ({config.buckets})")
        if len(train) < least or len(held_out) < config.graphs:
            raise ProblemError(
                f"{len(train)} training graphs and {len(held_out)} of validation: must be at least {name} and "
                f"data.graphs ({config.graphs})"
            )
        self._config, self._seed, self._build, self._own = config, seed, build, own
        self._common = common
        fresh = config.fresh
        self._buckets = (
            _fresh_buckets(config, load, common, generated) if fresh else _split(train, config.buckets, common)
        )
        self._held_out = _split(held_out, len(held_out) // config.graphs, common)
        self._whole = self._whole_batch() if is_whole else None
        self.prefetch = config.prefetch
        self.training_graphs, self.validation_graphs = len(train), config.graphs * len(self._held_out)

    def with_seed(self, seed: int) -> Self:
        """Returns the data of another run on the same graphs, which both share."""
        other = copy.copy(self)
        other._seed = seed
        return other

    def batch(self, step: int) -> Batch:
        """Creates the training batch of a step, counted from 1.

        A bucket is drawn in proportion to its number of graphs, and graphs from it without replacement if it has
        enough. Fresh graphs have the seeds after those of the step before; one that exceeds the bucket's sizes is
        replaced by a graph drawn from the bucket, so that a bucket needs one program. If individuals share the work,
        the batch is the whole set, smallest graph first.
        """
        if self._whole is not None:
            return self._whole
        config = self._config
        random = self._random(step)
        bucket = self._bucket(step, random)
        n = len(bucket.graphs)
        chosen = random.choice(n, config.graphs, replace=n < config.graphs)
        noise = random.integers(2**31, size=config.graphs)
        graphs, to = [bucket.graphs[i] for i in chosen], bucket.sizes
        if bucket.source is not None:
            first = bucket.source.first + (step - 1) * config.graphs
            fresh = [bucket.source.graph(first + i) for i in range(config.graphs)]
            fits = [to.covers(self._common([graph])) for graph in fresh]
            graphs = [new if fit else old for new, old, fit in zip(fresh, graphs, fits, strict=True)]
        own = [augmented(graphs[i], int(noise[i])) if config.augment else graphs[i] for i in self._own]
        return Batch(tuple(graph.name for graph in graphs), to, self._build(own, to))

    def sizes(self, step: int) -> Padded:
        """Returns the sizes of the batch of a step."""
        return self._whole.sizes if self._whole is not None else self._bucket(step, self._random(step)).sizes

    def sample(self, sizes: Padded) -> Any:
        """Creates rows of a batch of these sizes, of some step: an example of the shapes that training needs."""
        if self._whole is not None:
            return self._whole.rows
        bucket = next(bucket for bucket in self._buckets if bucket.sizes == sizes)
        return self._build([bucket.graphs[i % len(bucket.graphs)] for i in self._own], sizes)

    def largest(self) -> Any:
        """Creates a batch of the g largest training graphs, all rows of it in every process."""
        bucket = self._buckets[-1]
        graphs = sorted(bucket.graphs, key=lambda graph: len(graph.ops))[-self._config.graphs :]
        return self._build(graphs, bucket.sizes)

    def validation(self) -> Iterator[Batch]:
        """Yields all held-out graphs in batches of g, smallest first; each batch drops the remainder of its group.

        A batch is padded to the first training bucket that covers it, so that its programs are compiled only once.
        """
        for bucket in self._held_out:
            graphs = bucket.graphs[: self._config.graphs]
            own = [graphs[i] for i in self._own]
            larger = (other.sizes for other in self._buckets if other.sizes.covers(bucket.sizes))
            to = next(larger, bucket.sizes)
            yield Batch(tuple(graph.name for graph in graphs), to, self._build(own, to))

    def _whole_batch(self) -> Batch:
        (bucket,) = self._buckets
        names = tuple(graph.name for graph in bucket.graphs)
        return Batch(names, bucket.sizes, self._build(bucket.graphs, bucket.sizes))

    def _random(self, step: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, step])

    def _bucket(self, step: int, random: np.random.Generator) -> _Bucket:
        """Draws the bucket of a step with the first number of its generator."""
        open_buckets = self._buckets[: self._open_buckets(step)]
        counts = np.array([len(bucket.graphs) for bucket in open_buckets])
        return open_buckets[int(random.choice(len(counts), p=counts / counts.sum()))]

    def _open_buckets(self, step: int) -> int:
        """Returns the number of buckets that a step draws from: 1 at first, all from the step `curriculum` on."""
        if step >= self._config.curriculum:
            return len(self._buckets)
        return 1 + (step - 1) * len(self._buckets) // self._config.curriculum


def _whole_set_config(config: DataConfig) -> DataConfig:
    """Returns the settings for batches that each contain the whole training set.

    Raises:
      ProblemError: the settings ask for different graphs in each step.
    """
    for name in ("curriculum", "augment", "fresh"):
        if getattr(config, name):
            raise ProblemError(
                f"data.{name} is {getattr(config, name)}: must be {getattr(DataConfig(), name)} for an agent that "
                "trains on all graphs in every step"
            )
    return dataclasses.replace(config, buckets=1)


def _split(graphs: Sequence[ComputationGraph], groups: int, common: Common) -> list[_Bucket]:
    """Sorts graphs by number of ops, and splits them into groups of nearly equal numbers of graphs."""
    by_size = sorted(graphs, key=lambda graph: (len(graph.ops), graph.name))
    ends = [len(by_size) * i // groups for i in range(groups + 1)]
    cut = [tuple(by_size[begin:end]) for begin, end in itertools.pairwise(ends)]
    return [_Bucket(group, common(group)) for group in cut]


def _fresh_buckets(config: DataConfig, load: Load, common: Common, generated: Generated) -> list[_Bucket]:
    """Creates one bucket for each set of fresh graphs, sorted by padded number of ops."""
    sources = [generated(name) for name in config.train]
    families = {source.family for source in sources}
    for group in ("validation", "test"):
        for name in getattr(config, group):
            if name.partition(":")[0] in families:
                _check_apart(generated(name), sources, f"{name} of data.{group}")
    sampled = [(source, load([name])) for source, name in zip(sources, config.train, strict=True)]
    buckets = [_Bucket(tuple(graphs), common(graphs), source) for source, graphs in sampled]
    return sorted(buckets, key=lambda bucket: bucket.sizes.ops)


def _check_disjoint(one: str, other: str, duplicate: str | None) -> None:
    if duplicate is not None:
        raise ProblemError(f"{duplicate} is in data.{one} and in data.{other}: name sets that share no graph")


def _check_apart(held_out: GeneratedSet, sources: Sequence[GeneratedSet], name: str) -> None:
    for source in sources:
        if held_out.kind == source.kind and held_out.first + held_out.count > source.first:
            raise ProblemError(
                f"{name} would be among the fresh graphs of data.train, whose seeds increase from {source.first}: "
                "must have lower seeds"
            )


T = TypeVar("T")


@contextlib.contextmanager
def prefetched(make: Callable[[int], T], numbers: range, count: int) -> Iterator[Iterator[T]]:
    """Context manager that yields an iterator over the results of `make(number)`, in the order of the numbers.

    A thread calls `make`: Python runs it while the main thread waits for the device.

    Args:
      make: a function of the number alone.
      numbers: the numbers, in order; the caller may stop before the last one.
      count: number of results to compute ahead of requests, which bounds the memory; 0 computes each on request.

    The iterator raises the exceptions of `make`.
    """
    if count == 0:
        yield map(make, numbers)
        return
    pool = ThreadPoolExecutor(1, "graphrl-batches")
    try:
        yield _results(make, numbers, count, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(make: Callable[[int], T], numbers: range, count: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    futures: collections.deque[Future[T]] = collections.deque(pool.submit(make, number) for number in numbers[:count])
    for number in numbers[count:]:
        item = futures.popleft().result()
        futures.append(pool.submit(make, number))
        yield item
    while futures:
        yield futures.popleft().result()
