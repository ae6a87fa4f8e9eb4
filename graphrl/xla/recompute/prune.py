"""Clones that an order turned out not to need."""

from graphrl.xla.recompute.state import State

Clones = list[tuple[int, frozenset[int]]]


def pruned(state: State) -> list[int]:
    """Gives up clones, the most expensive first, whose value may as well be kept from its last use on without a higher
    peak; and those that only they read. `state` is changed: it still has their nodes, but nobody reads them.

    Returns:
      The nodes given up.
    """
    n, peak = state.facts.n, int(state.profile.max())
    written = {v.writer: number for number, v in state.values.items()}
    gone: list[int] = []
    for node in sorted(range(n, len(state.op)), key=lambda node: -state.facts.seconds[state.op[node]]):
        value = written[node]
        if state.values[value].readers and _may_go(state, value, peak):
            gone += _give_up(state, node, written)
    return gone


def _earlier(state: State, value: int) -> int | None:
    """The youngest other value of the same buffer that is there when this one is written."""
    versions = state.versions[state.values[value].buffer]
    birth = state.birth(value)
    births = [(state.birth(v), v) for v in versions if v != value and state.birth(v) <= birth and _in_use(state, v)]
    return max(births)[1] if births else None


def _in_use(state: State, value: int) -> bool:
    v = state.values[value]
    return v.writer < state.facts.n or bool(v.readers)


def _may_go(state: State, value: int, peak: int) -> bool:
    earlier = _earlier(state, value)
    if earlier is None:
        return False
    begin = state.death(earlier) + (earlier not in state.taken)
    added = state.profile[begin : state.birth(value)]
    return not len(added) or int(added.max()) + state.size(value) <= peak


def _give_up(state: State, node: int, written: dict[int, int]) -> list[int]:
    """Has the readers of a clone read the value before it; the nodes that nobody needs then."""
    value = written[node]
    earlier = _earlier(state, value)
    assert earlier is not None
    begin = state.death(earlier) + (earlier not in state.taken)
    state.profile[begin : state.birth(value)] += state.size(value)
    state.taken.discard(earlier)
    if value in state.taken:
        state.taken.add(earlier)
    for reader in list(state.values[value].readers):
        state.move(reader, earlier)
    return _unread(state, node, written)


def _unread(state: State, node: int, written: dict[int, int]) -> list[int]:
    gone = [node]
    for value in state.reads[node].values():
        v = state.values[value]
        v.readers.discard(node)
        if not v.readers and v.writer >= state.facts.n:
            gone += _unread(state, v.writer, written)
    return gone


def without(state: State, gone: list[int]) -> tuple[list[int], Clones]:
    """The order and the clones that are left, renumbered, as `State` takes them."""
    n, dropped = state.facts.n, set(gone)
    kept = [node for node in range(len(state.op)) if node not in dropped]
    number = {node: k for k, node in enumerate(kept)}
    rank = state.facts.flow.graph.arrays.rank
    order = [number[node] for node in sorted(kept, key=lambda node: (state.time[node], rank[state.op[node]]))]
    written = {v.writer: v for v in state.values.values() if v.writer >= n}
    clones = [
        (state.op[node], frozenset(number[reader] for reader in written[node].readers if reader in number))
        for node in kept[n:]
    ]
    return order, clones
