"""EGRL's sequential policy: it places the tensors one after another, and sees what the earlier choices have led to.

Choices that are independent of each other do not depend on whether a memory is full, nor on whether a step is now
bound by its operations. Here the choice of each tensor depends on those before it, through `FEATURES` of the tensor in
each memory: the seconds that it saves there now, and how much room is left over its life. Tensors that save most per
byte come first; everything starts in memory 0. With several passes, all tensors are placed again, given the others.

`TensorVisits` has what the pass reads of a problem. Seconds are relative to the mean step with everything in memory 0,
pages to each memory: a policy sees no units, and one perceptron scores every memory, so a policy is for chips of any
number of memories.

The features depend on the choices alone, not on the network's parameters. `place` returns them, so that the gradient of
the log-probabilities needs no pass over the tensors.

Letters: N steps, padded; M memories; T = 2 N tensors, the weights of all steps and then their outputs; K readers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.maps.problem import MapProblem, live_pages
from graphrl.networks.base import NEVER, signed_log

READERS = 12  # of an output: those that take longest to read it. More would only change features, not costs.
DATES = 3  # at which outputs of a step die; more are merged to the latest
FEATURES = (
    "saving",  # seconds less than in memory 0, given all choices so far; seconds as signed log1p
    "behind_best",  # saving less that of the best memory with room
    "over_price",  # log of the saving per page and step over the `price` of the memory
    "first_saving",  # saving with everything else in memory 0
    "most_saving",  # saving if everything else took no time
    "size",  # log of pages over the memory's; 0 for memory 0, as are the next ones
    "room_left",  # log of the share of the memory that is left at the fullest step of the tensor's life
    "growth",  # log of what the tensor adds to the most that the memory holds in any step, over its size
    "free",  # share of the memory that is free, over all steps
    "demand",  # log of what later tensors would take over what is free
    "rank",  # log of what the tensor and those that save more per page would take over the memory's size
    "crowd",  # log of the pages of all tensors at the fullest step of the tensor's life over the memory's
    "outputs",  # log of the most pages of outputs in any step over the memory's
    "fits",  # 1 if there is room
    "here",  # 1 if the tensor is there now
    "is_slowest",
    "is_fastest",
    "speed",  # log of seconds in memory 0 over seconds here
    "is_output",  # the following ones are alike in all memories
    "life",  # share of all steps
    "position",  # of its step, as a share of all
    "step_seconds",  # of the tensor's own step now
    "step_slack",  # seconds of that step beyond its operations
    "turn",  # share of the tensors placed in this pass
    "pass",
)
_ALL = 1e9  # pages of memory 0


class TensorVisits(NamedTuple):
    """A problem as the pass reads it; a batch has a leading axis g."""

    real: jax.Array  # [] int32, number of tensors to place
    order: jax.Array  # [T] int32, tensors: those to place first
    begin: jax.Array  # [T] int32, the first step in which a tensor is live; it has D parts, that die at different dates
    end: jax.Array  # [T, D] int32, the last one, of each part of it
    pages: jax.Array  # [T, D] float32, of each part
    area: jax.Array  # [T] float32, pages times steps
    rows: jax.Array  # [T, K + 1] int32, steps that read or write a tensor; N for padding
    seconds: jax.Array  # [T, K + 1, M] float32, of that
    static: jax.Array  # [T, M, 7] float32, first_saving, most_saving, size, rank, speed, crowd, outputs
    price: jax.Array  # [M] float32, saving per page and step at which the memory is full, roughly
    demand: jax.Array  # [T] float32, pages times steps of the tensors after each turn
    compute: jax.Array  # [N + 1] float32, seconds of operations
    start: jax.Array  # [T] int32, the memory of each tensor before the first pass
    used: jax.Array  # [M, N] float32, pages by step then
    busy: jax.Array  # [N + 1, M] float32, seconds of each step in each memory then
    capacity: jax.Array  # [M] float32, pages
    steps: jax.Array  # [] float32, real steps


class Placed(NamedTuple):
    """The result of `place`; V = passes * T turns."""

    features: jax.Array  # [V, M, len(FEATURES)] float32
    bias: jax.Array  # [V, M] float32, see `_bias`
    choice: jax.Array  # [V] int32
    map: jax.Array  # [N, 2] int32


class _State(NamedTuple):
    """The map so far."""

    memory: jax.Array  # [T] int32
    used: jax.Array  # [M, N] float32, pages by step
    busy: jax.Array  # [N + 1, M] float32, seconds


def visits(problem: MapProblem, steps: int, start: np.ndarray) -> TensorVisits:
    """Computes the visits of a problem, padded to N = `steps` (NumPy).

    Args:
      start: `[n, 2]`, a valid map, from which the first pass starts.
    """
    n = problem.steps
    own = np.concatenate([np.arange(n), steps + np.arange(n)])  # rows of this graph in tables of T tensors
    unit, compute, busy = _base(problem, steps)
    rows, seconds = _uses(problem, steps, unit)
    saving = _savings(rows, seconds, compute, busy[:, 0])
    most = _savings(rows, seconds, compute, seconds[:, :, 0])
    begin, end, pages = _lives(problem, steps)
    area = (np.maximum(pages, 0) * (end - begin[:, None] + 1)).sum(1)
    capacity = problem.capacity.astype(np.float64)
    density = saving / np.maximum(area, 1)[:, None]
    placed = np.zeros(2 * steps, bool)
    placed[own] = np.concatenate([problem.has_weights, problem.has_outputs])
    order = np.lexsort((-density.max(1), ~placed))
    wanted = np.where(placed & (saving.max(1) > 1e-6), area, 0.0)
    price, rank = _prices(density, wanted, capacity * n)
    crowds = _crowds(problem, begin, end.max(1))
    static = np.stack(
        [signed_log(10 * saving), signed_log(10 * most), *_ratios(pages, seconds, capacity, rank, crowds)], -1
    )
    memory = np.zeros(2 * steps, np.int32)
    memory[own] = start.T.ravel()
    used = _occupy(memory, begin, end, pages, rows, seconds, busy)
    fields: dict[str, Any] = {
        "real": np.int32(placed.sum()),
        "order": order.astype(np.int32),
        "begin": begin,
        "end": end,
        "pages": pages.astype(np.float32),
        "area": np.maximum(area, 1).astype(np.float32),
        "rows": rows,
        "seconds": seconds,
        "static": static.astype(np.float32),
        "price": price.astype(np.float32),
        "demand": (wanted.sum() - wanted[order].cumsum()).astype(np.float32),
        "compute": compute,
        "start": memory,
        "used": used.astype(np.float32),
        "busy": busy,
        "capacity": np.concatenate([[_ALL], capacity[1:]]).astype(np.float32),
        "steps": np.float32(n),
    }
    return TensorVisits(**fields)


def _base(problem: MapProblem, steps: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the mean step's seconds with everything in memory 0, and in this unit each step's operations `[N + 1]`
    and its use of each memory `[N + 1, M]` then.
    """
    slowest = problem.input_seconds + problem.weight_seconds[:, 0] + problem.output_seconds[:, 0]
    np.add.at(slowest, problem.read_step, problem.read_seconds[:, 0])
    unit = max(np.maximum(slowest, problem.compute).mean(), 1e-30)
    compute, busy = np.zeros(steps + 1, np.float32), np.zeros((steps + 1, problem.memories), np.float32)
    compute[: problem.steps], busy[: problem.steps, 0] = problem.compute / unit, slowest / unit
    return unit, compute, busy


def _ratios(
    pages: np.ndarray, seconds: np.ndarray, capacity: np.ndarray, rank: np.ndarray, crowds: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    """Returns the features size, rank, speed, crowd and outputs, `[T, M]` each."""

    def over_capacity(amount: np.ndarray, least: float) -> np.ndarray:
        share = np.zeros((len(amount), len(capacity)))
        share[:, 1:] = np.log(amount[:, None] / np.maximum(capacity[1:], 1) + least) / 3
        return share

    total = seconds.sum(1)
    speed = np.log((total[:, :1] + 1e-6) / (total + 1e-6)) / 3
    return [over_capacity(pages.sum(1), 1e-4), rank, speed, *(over_capacity(each, 1e-3) for each in crowds)]


def _occupy(
    memory: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    pages: np.ndarray,
    rows: np.ndarray,
    seconds: np.ndarray,
    busy: np.ndarray,
) -> np.ndarray:
    """Returns the pages of each memory by step, `[M, N]`, for tensors in `memory` `[T]`, and moves their seconds in
    `busy` `[N + 1, M]` from memory 0 to it. Memory 0 has no limit, so that its pages are not counted.
    """
    step = np.arange(len(busy) - 1)
    used = np.zeros((busy.shape[1], len(step)))
    for tensor in np.flatnonzero(memory):
        live = (step >= begin[tensor]) & (step <= end[tensor, :, None])
        used[memory[tensor]] += (pages[tensor, :, None] * live).sum(0)
        busy[rows[tensor], memory[tensor]] += seconds[tensor, :, memory[tensor]]
        busy[rows[tensor], 0] -= seconds[tensor, :, 0]
    return used


def _lives(problem: MapProblem, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns each tensor's first step `[T]` int32, and its parts' last steps `[T, D]` int32 and pages `[T, D]`."""
    n = problem.steps
    begin, end = np.zeros(2 * steps, np.int32), np.zeros((2 * steps, DATES), np.int32)
    pages = np.zeros((2 * steps, DATES))
    end[:n, 0], pages[:n, 0] = n - 1, problem.weight_pages
    begin[steps : steps + n] = np.arange(n)
    end[steps : steps + n] = np.arange(n)[:, None]
    pairs, index = np.unique(problem.writer * n + problem.last, return_inverse=True)
    size = np.bincount(index, problem.tensor_pages, len(pairs))
    step, last = pairs[::-1] // n, pairs[::-1] % n  # the latest first
    part = np.minimum(np.arange(len(pairs)) - np.searchsorted(-step, -step), DATES - 1)
    np.maximum.at(end, (steps + step, part), last)
    np.add.at(pages, (steps + step, part), size[::-1])
    return begin, end, pages


def _crowds(problem: MapProblem, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the most pages of all tensors in a step of each tensor's life, and of outputs in any step: `[T]` each."""
    live = live_pages(problem, np.ones(len(problem.writer), bool))
    most = np.maximum.reduceat(np.append(live, 0), np.stack([begin, end + 1], 1).ravel())[::2]
    return most + problem.weight_pages.sum(), np.full(len(begin), live.max(initial=0))


def _uses(problem: MapProblem, steps: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Lists the steps that use each tensor, `[T, K + 1]` int32, and their seconds in each memory, `[T, K + 1, M]`."""
    n, m = problem.steps, problem.memories
    rows = np.full((2 * steps, READERS + 1), steps, np.int32)
    seconds = np.zeros((2 * steps, READERS + 1, m), np.float32)
    own = np.arange(n)
    rows[:n, 0] = rows[steps : steps + n, 0] = own
    seconds[:n, 0] = problem.weight_seconds / unit
    seconds[steps : steps + n, 0] = problem.output_seconds / unit
    pairs = np.lexsort((-problem.read_seconds[:, 0], problem.read_source))
    source = problem.read_source[pairs]
    column = np.arange(len(pairs)) - np.searchsorted(source, source)
    near = column < READERS
    place = steps + source[near], 1 + column[near]
    rows[place] = problem.read_step[pairs[near]]
    seconds[place] = problem.read_seconds[pairs[near]] / unit
    return rows, seconds


def _savings(rows: np.ndarray, seconds: np.ndarray, compute: np.ndarray, slowest: np.ndarray) -> np.ndarray:
    """Returns what each tensor saves in each memory, `[T, M]`, if the steps that use it take `slowest` seconds now:
    `[N + 1]`, or by use `[T, K + 1]`. As the others' part is in memory 0, a faster memory is never the busier one.
    """
    now = slowest[rows] if slowest.ndim == 1 else slowest
    least = compute[rows]
    others = now[:, :, None] - seconds[:, :, :1]
    after = np.maximum(np.maximum(others, least[:, :, None]), seconds)
    after[:, :, 0] = np.maximum(now, least)
    return np.maximum(np.maximum(now, least)[:, :, None] - after, 0).sum(1)


def _prices(density: np.ndarray, area: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimates for each memory the density at which it and the faster ones are full, `[M]`; and for each tensor the
    log of what it and the denser ones take, over that room: `[T, M]`. Both are 0 for memory 0.
    """
    price, rank = np.zeros(density.shape[1]), np.zeros(density.shape)
    for memory in range(1, density.shape[1]):
        order = np.argsort(-density[:, memory], kind="stable")
        taken, most = area[order].cumsum(), max(room[memory:].sum(), 1.0)
        full = np.searchsorted(taken, most)
        price[memory] = density[order[full], memory] if full < len(order) else 0.0
        rank[order, memory] = np.log(taken / most + 1e-3) / 3
    return price, rank


def place(
    visits: TensorVisits, passes: int, preference: float, key: jax.Array, choose: Callable[[jax.Array, Any], jax.Array]
) -> Placed:
    """Places the tensors of one graph.

    Args:
      visits: of the graph.
      passes: number of times that every tensor is placed.
      preference: see `_bias`.
      key: of the samples. A turn's key depends on its pass and its place in it, not on padding.
      choose: (key, (features `[M, F]`, bias `[M]`)) -> memory, `[]` int32.
    """
    visits = jax.tree.map(jnp.asarray, visits)
    tensors, m = len(visits.order), len(visits.capacity)
    n = tensors // 2

    def body(state: _State, turn: Any) -> tuple[_State, tuple[jax.Array, jax.Array, jax.Array]]:
        number, key = turn
        is_real = number % tensors < visits.real
        tensor = visits.order[number % tensors]
        features, bias = _look(visits, state, tensor, number, preference)
        bias = jnp.where(is_real | (jnp.arange(m) == 0), bias, NEVER)
        choice = jnp.where(is_real, choose(key, (features, bias)), 0)
        return _advance(visits, state, tensor, choice), (features, bias, choice)

    state = _State(visits.start, visits.used, visits.busy)
    each_pass = jnp.arange(passes, dtype=jnp.uint32)
    keys = jax.vmap(lambda number: jax.random.split(jax.random.fold_in(key, number), tensors))(each_pass).reshape(-1)
    turns = jnp.arange(passes * tensors, dtype=jnp.int32)
    state, (features, bias, choice) = jax.lax.scan(body, state, (turns, keys))
    return Placed(features, bias, choice, state.memory.reshape(2, n).T)


class _Room(NamedTuple):
    """Room for a tensor in each memory, without the room that it takes itself now: `[M]` each."""

    fits: jax.Array  # bool, always True for memory 0
    left: jax.Array  # pages left with it, at the fullest step of its life
    growth: jax.Array  # pages that it adds to the fullest step of all
    free: jax.Array  # share of the memory that is free, over all steps


def _room(visits: TensorVisits, state: _State, tensor: jax.Array) -> _Room:
    m, capacity = len(visits.capacity), visits.capacity
    here, span = jax.nn.one_hot(state.memory[tensor], m), _span(visits, tensor)
    live = (visits.pages[tensor] @ span)[None]
    used = state.used - here[:, None] * live
    most = ((used + live) * span.max(0)[None]).max(1)
    left = capacity - most
    fits = (left >= -1e-6 * capacity) | (jnp.arange(m) == 0)
    free = jnp.maximum(1 - used.sum(1) / (capacity * visits.steps + 1e-9), 0.0)
    return _Room(fits, left, jnp.maximum(most - used.max(1), 0.0), free)


def _saving(visits: TensorVisits, state: _State, tensor: jax.Array) -> jax.Array:
    """Computes the seconds that the tensor saves in each memory, less than in memory 0: `[M]` float32."""
    m, rows, seconds = len(visits.capacity), visits.rows[tensor], visits.seconds[tensor]
    others = state.busy[rows] - jax.nn.one_hot(state.memory[tensor], m)[None] * seconds
    each = others[:, None, :] + jnp.eye(m)[None] * seconds[:, :, None]  # [K + 1, memory of the tensor, M]
    times = jnp.maximum(each.max(-1), visits.compute[rows][:, None])
    return (times[:, :1] - times).sum(0)


def _look(
    visits: TensorVisits, state: _State, tensor: jax.Array, number: jax.Array, preference: float
) -> tuple[jax.Array, jax.Array]:
    """Computes `FEATURES` of a tensor in each memory, `[M, F]` float32, and the bias `[M]`, at one turn."""
    tensors, m = len(visits.order), len(visits.capacity)
    memory, turn = jnp.arange(m, dtype=jnp.int32), number % tensors
    room, saving, capacity = _room(visits, state, tensor), _saving(visits, state, tensor), visits.capacity + 1e-9
    best = jnp.where(room.fits, saving, -jnp.inf).max()
    density = jnp.maximum(saving, 0.0) / visits.area[tensor]
    first, most, size, rank, speed, crowd, outputs = visits.static[tensor].T

    def small(values: jax.Array) -> jax.Array:
        return jnp.where(memory > 0, values, 0.0)

    def ratio(above: jax.Array, below: jax.Array) -> jax.Array:
        return jnp.clip(jnp.log(above / below), -5, 5) / 2

    columns = (
        signed_log(10 * saving),
        signed_log(10 * (saving - best)),
        small(ratio(density + 1e-12, visits.price + 1e-12)),
        first,
        most,
        size,
        small(jnp.log(jnp.clip(room.left / capacity, 1e-3, 1)) / 3),
        small(jnp.log(room.growth / capacity + 1e-3) / 3),
        small(room.free),
        small(ratio(visits.demand[turn] + 1, capacity * visits.steps * room.free + 1)),
        rank,
        crowd,
        outputs,
        _number(room.fits),
        jax.nn.one_hot(state.memory[tensor], m),
        _number(memory == 0),
        _number(memory == m - 1),
        speed,
        *(jnp.broadcast_to(value, (m,)) for value in _alike(visits, state, tensor, number)),
    )
    return jnp.stack(columns, -1), _bias(saving, room.fits, preference)


def _alike(visits: TensorVisits, state: _State, tensor: jax.Array, number: jax.Array) -> tuple[jax.Array, ...]:
    """Computes the `FEATURES` from "is_output" on, which are alike in all memories: `[]` float32 each."""
    tensors, step = len(visits.order), visits.rows[tensor, 0]
    life = visits.end[tensor].max() - visits.begin[tensor] + 1
    now, least = state.busy[step].max(), visits.compute[step]
    return (
        _number(tensor >= tensors // 2),
        _number(life) / visits.steps,
        _number(step) / visits.steps,
        signed_log(10 * jnp.maximum(now, least)),
        signed_log(10 * jnp.maximum(now - least, 0.0)),
        _number(number % tensors) / jnp.maximum(_number(visits.real), 1.0),
        _number(number >= tensors),
    )


def _bias(saving: jax.Array, fits: jax.Array, preference: float) -> jax.Array:
    """Returns `preference` for the memory with room that saves most (the slowest such), and `NEVER` for those without
    room: `[M]`.
    """
    m = len(saving)
    best = jnp.where(fits, saving - 1e-5 * jnp.arange(m, dtype=jnp.float32), -jnp.inf).argmax()
    return jnp.where(fits, preference * jax.nn.one_hot(best, m), NEVER)


def _advance(visits: TensorVisits, state: _State, tensor: jax.Array, choice: jax.Array) -> _State:
    """Places the tensor."""
    m = len(visits.capacity)
    change = jax.nn.one_hot(choice, m) - jax.nn.one_hot(state.memory[tensor], m)
    live = visits.pages[tensor] @ _span(visits, tensor)
    return _State(
        state.memory.at[tensor].set(choice),
        state.used + change[:, None] * live[None],
        state.busy.at[visits.rows[tensor]].add(change[None] * visits.seconds[tensor]),
    )


def _span(visits: TensorVisits, tensor: jax.Array) -> jax.Array:
    """Returns 1 for the steps of the life of each part of a tensor: `[D, N]` float32."""
    step = jnp.arange(len(visits.order) // 2, dtype=jnp.int32)
    return _number((step >= visits.begin[tensor])[None] & (step[None] <= visits.end[tensor][:, None]))


def _number(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)
