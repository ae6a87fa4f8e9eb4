"""Residuals of loops that are no longer kept, and how the backward loop computes their slices again.

`chosen` drops those of most bytes for each second of computing them again. `Recipes` has the steps that give a slice of
one, from slices of others and from what both loops know. `numbered` and `named` translate the choice to numbers for the
disk and back, since names differ between processes.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.xla.bodies import runs_of
from graphrl.xla.recompute.candidates import RunTimes, is_of_class
from graphrl.xla.recompute.loops import Loops, Reference, Residual, loops_of

LEAST_BYTES = 2**16  # of a residual: smaller ones stay
_FREE = 1e-7  # of the run time: what costs less is as good as free
MAX_CHAIN = 40  # instructions, each of which needs the one before
_BACK = ("bitcast", "copy")  # what they do to a value can be undone by their like
Dropped = tuple[tuple[int, int, int, tuple[int, ...]], ...]


class Choice(NamedTuple):
    """Residuals that are no longer kept.

    Attributes:
      dropped: which.
      bytes: of all of them.
      cost: part of the module's run time that computing them again takes, less what keeping them took.
    """

    dropped: Dropped
    bytes: int
    cost: float


def chosen(module: HloModule, limit: float, over: Callable[[], bool] = lambda: False) -> Choice:
    """The residuals to drop: those of most bytes for their cost first, or simply the largest first.

    Args:
      module: scheduled.
      limit: part of the module's run time that may be spent.
      over: whether to stop with what there is.
    """
    loops, costs = list(loops_of(module)), RunTimes(module)
    ranks = (lambda size, cost: (-size / max(_FREE, cost),), lambda size, cost: (-size, cost))
    greedy = (_greedy([_Pair(each, costs) for each in loops], limit, rank, over) for rank in ranks)
    best, spent = max(greedy, key=lambda one: sum(pair.bytes for pair in one[0]))
    dropped = numbered(module, {pair.loops: pair.dropped for pair in best if pair.dropped})
    return Choice(dropped, sum(pair.bytes for pair in best), max(0.0, spent))


def _greedy(
    pairs: list["_Pair"], limit: float, rank: Callable[[int, float], tuple[float, ...]], over: Callable[[], bool]
) -> tuple[list["_Pair"], float]:
    """Drops residuals one by one, as long as the limit lasts, always one of the lowest rank by its bytes and cost; what
    is spent. Costs seldom change much when others are dropped, so that old ones say whom to look at next (Minoux 1978,
    "lazy greedy"); those that could not be dropped are looked at again until no more can.
    """
    spent, count = 0.0, -1
    while count < sum(len(pair.dropped) for pair in pairs):
        count = sum(len(pair.dropped) for pair in pairs)
        queue = [(rank(one.bytes, 0.0), number, one.place) for number, pair in enumerate(pairs) for one in pair.left()]
        heapq.heapify(queue)
        while queue and not over():
            _, number, place = heapq.heappop(queue)
            pair = pairs[number]
            residual = next(one for one in pair.left() if one.place == place)
            cost = pair.cost_of(residual) - pair.cost
            own = rank(residual.bytes, cost)
            if spent + cost > limit:
                continue
            if queue and own > queue[0][0]:
                heapq.heappush(queue, (own, number, place))
            else:
                pair.drop(residual)
                spent += cost
    return pairs, spent


class _Pair:
    """A pair of loops and what it does not keep.

    Attributes:
      loops: the pair.
      dropped: residuals that are no longer kept.
      cost: part of the module's run time.
    """

    def __init__(self, loops: Loops, costs: RunTimes) -> None:
        self.loops, self._costs = loops, costs
        large = (one for one in loops.residuals if one.bytes >= LEAST_BYTES)
        self._large = [one for one in large if loops.readings(one)]
        self.dropped: tuple[Residual, ...] = ()
        self.cost = 0.0
        module, caller = loops.module, costs.of_computation(loops.caller.name)
        # Of a loop without a known number of trips, the part of one trip.
        self._total = max(caller, costs.of_computation(module.entry.name) / runs_of(module)[loops.caller.name])

    @property
    def bytes(self) -> int:
        """Of all that is dropped."""
        return sum(one.bytes for one in self.dropped)

    def left(self) -> list[Residual]:
        """What is kept, and need not be."""
        return [one for one in self._large if one not in self.dropped]

    def drop(self, residual: Residual) -> None:
        """Keeps one more no longer."""
        self.cost = self.cost_of(residual)
        self.dropped = (*self.dropped, residual)

    def cost_of(self, residual: Residual) -> float:
        """With one more that is no longer kept; infinite where that cannot be."""
        loops, dropped = self.loops, (*self.dropped, residual)
        recipes = Recipes(loops, [one for one in loops.residuals if one not in dropped], self._costs)
        try:
            wanted = [recipes.of(one) for one in dropped]
        except Impossible:
            return math.inf
        body = loops.ahead.computation
        saved = sum(self._costs.of(body.by_name[one.writer], body) for one in dropped)
        return (loops.trips or 0) * (recipes.seconds(wanted) - saved) / self._total


def numbered(module: HloModule, dropped: Mapping[Loops, Sequence[Residual]]) -> Dropped:
    """Residuals without names, which differ from process to process: of each pair of loops the place of its caller in
    `module.sequential`, those of the loops in the caller's instructions, and those of the residuals.
    """
    sequential = [c.name for c in module.sequential]
    pairs = []
    for loops, residuals in dropped.items():
        names = tuple(loops.caller.by_name)
        at = sequential.index(loops.caller.name), names.index(loops.forward.name), names.index(loops.backward.name)
        pairs.append((*at, tuple(sorted(residual.place for residual in residuals))))
    return tuple(pairs)


def named(module: HloModule, dropped: Dropped) -> dict[Loops, list[Residual]]:
    """What `numbered` was given.

    Raises:
      PlanError: the module has no such loops, or not these residuals.
    """
    pairs = {numbered(module, {loops: ()})[0][:3]: loops for loops in loops_of(module)}
    residuals = {}
    for *at, places in dropped:
        loops = pairs.get((at[0], at[1], at[2]))
        own = {} if loops is None else {one.place: one for one in loops.residuals if loops.readings(one)}
        if loops is None or not own.keys() >= set(places):
            raise PlanError(f"{module.name}: the plan drops residuals that its loops do not have")
        residuals[loops] = [own[place] for place in places]
    return residuals


class Impossible(PlanError):
    """A residual is needed that cannot be computed in the backward loop."""

    def __init__(self, loops: Loops) -> None:
        super().__init__(
            f"{loops.module.name}: {loops.backward.name!r} cannot do without a residual of its forward loop"
        )


class Step(NamedTuple):
    """An instruction of the backward loop's body that is to be.

    Attributes:
      kind: "given": it is there, a part of what the loop is given; "index": of the slices that it reads; "slice": of a
        residual; "undo": what a bitcast or a copy into another layout did is undone; "clone": an instruction of the
        forward loop, with what it fuses; "part": what a fusion of the forward loop computes on the way to one of its
        instructions.
      what: the part's place; the residual; what is undone, cloned, or the way's end.
      operands: numbers of the steps that it reads; of a part, in the order of `cuts`.
      cuts: of a part: instructions inside of the fusion where its operands stand instead.
      seconds: of one trip.
    """

    kind: Literal["given", "index", "slice", "undo", "clone", "part"]
    what: int | Residual | Reference
    operands: tuple[int, ...]
    cuts: tuple[str, ...]
    seconds: float


class Recipes:
    """Steps for the slices of residuals that are no longer kept.

    Args:
      loops: the pair.
      kept: the residuals that are.
      costs: of the module.
    """

    def __init__(self, loops: Loops, kept: Collection[Residual], costs: RunTimes) -> None:
        self._loops, self._ahead, self._costs = loops, loops.ahead, costs
        self.steps: list[Step] = []
        self._step_of: dict[int, int] = {}  # by number of the value
        self._impossible: set[int] = set()
        self._depth = 0
        self._kept: dict[int, tuple[Residual, tuple[Reference, ...]]] = {}
        for residual in kept:
            for number, back in self._ways_back(residual):
                if number not in self._kept or len(back) < len(self._kept[number][1]):
                    self._kept[number] = residual, back

    def of(self, residual: Residual) -> int:
        """The number of the step that gives the slice of a residual.

        Raises:
          Impossible: there is none.
        """
        return self._step(residual.update)

    def seconds(self, wanted: Sequence[int]) -> float:
        """Of one trip, of all that some steps need, and of themselves."""
        return sum(self.steps[number].seconds for number in self.needed(wanted))

    def needed(self, wanted: Sequence[int]) -> list[int]:
        """Numbers of steps, with all that they need, what is needed first."""
        seen = set(wanted)
        todo = list(seen)
        while todo:
            for number in self.steps[todo.pop()].operands:
                if number not in seen:
                    seen.add(number)
                    todo.append(number)
        return sorted(seen)

    def _ways_back(self, residual: Residual) -> Iterator[tuple[int, tuple[Reference, ...]]]:
        """Values that a residual's slice holds, and what is to be undone to have them: the last first."""
        reference = residual.update
        back: tuple[Reference, ...] = ()
        while True:
            reference = self._ahead.origin(reference)
            yield self._ahead.number[reference], back
            if self._ahead.instruction(reference).opcode not in _BACK:
                return
            back = (*back, reference)
            (reference,) = self._ahead.operands(reference)

    def _add(self, kind: str, what: object, operands: Sequence[int], seconds: float, cuts: Sequence[str] = ()) -> int:
        self.steps.append(Step(kind, what, tuple(operands), tuple(cuts), seconds))  # type: ignore[arg-type]
        return len(self.steps) - 1

    def _step(self, reference: Reference) -> int:
        number = self._ahead.number[reference]
        if number in self._impossible or self._depth > MAX_CHAIN:
            raise Impossible(self._loops)
        if number not in self._step_of:
            self._depth += 1
            try:
                self._step_of[number] = self._from_kept(number) if number in self._kept else self._computed(reference)
            except Impossible:
                self._impossible.add(number)
                raise
            finally:
                self._depth -= 1
        return self._step_of[number]

    def _from_kept(self, number: int) -> int:
        residual, back = self._kept[number]
        first = self._ahead.number[self._ahead.origin(residual.update)]
        if first not in self._step_of:
            size = residual.bytes // (self._loops.trips or 1)
            self._step_of[first] = self._add("slice", residual, (), self._costs.of_moving(size))
        step = self._step_of[first]
        for reference in back:
            i = self._ahead.instruction(reference)
            seconds = 0.0 if i.opcode == "bitcast" else self._costs.of_moving(i.shape.bytes)
            step = self._add("undo", reference, (step,), seconds)
        return step

    def _computed(self, reference: Reference) -> int:
        (scope, _), i = reference, self._ahead.instruction(reference)
        if scope and i.opcode == "parameter":
            return self._step(("", self._ahead.computation.by_name[scope].operands[i.attributes.parameter_number]))
        if i.opcode in ("bitcast", "constant"):
            return self._add("clone", reference, [self._step(each) for each in self._ahead.operands(reference)], 0.0)
        if scope:
            return self._part(reference)
        if i.opcode == "get-tuple-element":
            return self._given(i)
        if not is_of_class(self._loops.module, i, dear=True):
            raise Impossible(self._loops)
        if i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
            try:
                return self._part(self._ahead.origin(reference))
            except Impossible:
                pass
        operands = [self._step(each) for each in self._ahead.operands(reference)]
        return self._add("clone", reference, operands, self._costs.of(i, self._ahead.computation))

    def _given(self, i: Instruction) -> int:
        loops, place = self._loops, i.attributes.tuple_index
        if i.operands[0] == self._ahead.computation.parameters[0].name:
            if place in loops.shared:
                return self._add("given", loops.shared[place], (), 0.0)
            if place == loops.counter and loops.index and loops.behind.instruction(loops.index).shape == i.shape:
                return self._add("index", loops.index, (), 0.0)
        raise Impossible(loops)

    def _part(self, reference: Reference) -> int:
        """What a fusion computes up to an instruction, from its operands or from what is kept of the way there."""
        scope, end = reference
        ahead, inside = self._ahead, self._ahead.inside(reference[0])
        cuts: list[str] = []
        within, todo = {end}, [end]
        while todo:
            for name in inside.by_name[todo.pop()].operands:
                if name in within or name in cuts:
                    continue
                is_constant = inside.by_name[name].opcode == "constant"
                if not is_constant and (ahead.number[scope, name] in self._kept or ahead.is_parameter((scope, name))):
                    cuts.append(name)
                else:
                    within.add(name)
                    todo.append(name)
        seconds = self._costs.of(ahead.computation.by_name[scope], ahead.computation)
        if end == inside.root.name and all(ahead.is_parameter((scope, name)) for name in cuts):
            operands = [self._step(each) for each in ahead.operands(("", scope))]
            return self._add("clone", ("", scope), operands, seconds)
        contracts = any((scope, name) in ahead.contracted for name in within)
        if contracts and not self._contracts_alike(reference, within, cuts):
            raise Impossible(self._loops)
        return self._add("part", reference, [self._step((scope, name)) for name in cuts], seconds, cuts)

    def _contracts_alike(self, end: Reference, within: Collection[str], cuts: Collection[str]) -> bool:
        """Whether LLVM sees the same products and sums together in a part of a fusion as in the whole: the same loops
        around, no product cut off from its sum, and nothing read by what is cut off.
        """
        scope, inside = end[0], self._ahead.inside(end[0])
        return (
            end[1] == inside.root.name
            and not any(inside.by_name[name].called for name in within)
            and not any((scope, name) in self._ahead.products for name in cuts)
            and all(user.name in within for name in within for user in inside.users[name] if _is_computed(inside, name))
        )


def _is_computed(inside: Computation, name: str) -> bool:
    """Whether an instruction of a fusion depends on what the fusion reads, and is not the same everywhere."""
    return inside.by_name[name].opcode not in ("constant", "iota", "broadcast") or any(
        _is_computed(inside, operand) for operand in inside.by_name[name].operands
    )
