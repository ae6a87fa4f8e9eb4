"""Choice of loop residuals to drop, and the steps by which the backward loop computes their slices again.

A residual is an array that a forward loop keeps for a backward loop, one slice in each trip (loops.py).
`choose_residuals` drops those with most bytes per second of recomputation. `Recipes` plans the steps that compute a
slice again, from slices of kept residuals and from values that both loops receive. `numbered` and `named` translate the
choice to numbers for the disk and back, since names differ between processes.
"""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, Instruction
from graphrl.graphs.readers.hlo.work import runs_of
from graphrl.xla.recompute.candidates import RunTimes, is_repeatable
from graphrl.xla.recompute.loops import Loops, Reference, Residual, loops_of

LEAST_BYTES = 2**16  # least size of a residual to drop
_FREE = 1e-7  # share of the run time: smaller costs rank as this one
MAX_CHAIN = 40  # longest chain of instructions to compute a slice
_BACK = ("bitcast", "copy")  # their inverse has the same opcode
Dropped = tuple[tuple[int, int, int, tuple[int, ...]], ...]  # see `numbered`


class Choice(NamedTuple):
    """Residuals to drop, and the effect of that.

    Attributes:
      dropped: the residuals, in the form of `numbered`.
      bytes: size of all of them together.
      cost: time to compute them again, less the time that writing them took, as a share of the module's run time.
    """

    dropped: Dropped
    bytes: int
    cost: float


def choose_residuals(module: HloModule, limit: float, over: Callable[[], bool] = lambda: False) -> Choice:
    """Chooses the residuals to drop: by bytes per cost, or by bytes alone, whichever drops more bytes.

    Args:
      module: the scheduled module.
      limit: largest cost, as a share of the module's run time.
      over: returns True once the search should stop with the residuals chosen so far.
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
    """Drops residuals one by one within the limit, always one of the lowest rank by bytes and cost.

    Costs seldom change much when others are dropped, so a queue of old ranks gives the next one to evaluate (Minoux
    1978, "lazy greedy"). Residuals that could not be dropped are tried again until no more can be.

    Returns:
      The pairs, and the share of the run time that is spent.
    """
    spent, count = 0.0, -1
    while count < sum(len(pair.dropped) for pair in pairs):
        count = sum(len(pair.dropped) for pair in pairs)
        queue = [(rank(r.bytes, 0.0), number, r.place) for number, pair in enumerate(pairs) for r in pair.left()]
        heapq.heapify(queue)
        while queue and not over():
            _, number, place = heapq.heappop(queue)
            pair = pairs[number]
            residual = next(residual for residual in pair.left() if residual.place == place)
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
    """A forward and a backward loop, and their dropped residuals.

    Attributes:
      loops: the two loops.
      dropped: their dropped residuals.
      cost: cost of dropping them, as a share of the module's run time.
    """

    def __init__(self, loops: Loops, costs: RunTimes) -> None:
        self.loops, self._costs = loops, costs
        large = (residual for residual in loops.residuals if residual.bytes >= LEAST_BYTES)
        self._large = [residual for residual in large if loops.readings(residual)]
        self.dropped: tuple[Residual, ...] = ()
        self.cost = 0.0
        module, caller = loops.module, costs.of_computation(loops.caller.name)
        # If the caller is run by a loop with an unknown number of trips, costs are parts of one trip.
        self._total = max(caller, costs.of_computation(module.entry.name) / runs_of(module)[loops.caller.name])

    @property
    def bytes(self) -> int:
        """Size of all dropped residuals together."""
        return sum(residual.bytes for residual in self.dropped)

    def left(self) -> list[Residual]:
        """Returns the residuals that are kept and may be dropped."""
        return [residual for residual in self._large if residual not in self.dropped]

    def drop(self, residual: Residual) -> None:
        """Drops one more residual."""
        self.cost = self.cost_of(residual)
        self.dropped = (*self.dropped, residual)

    def cost_of(self, residual: Residual) -> float:
        """Returns the cost if one more residual is dropped; infinite if it cannot be computed again."""
        loops, dropped = self.loops, (*self.dropped, residual)
        recipes = Recipes(loops, [residual for residual in loops.residuals if residual not in dropped], self._costs)
        try:
            wanted = [recipes.of(residual) for residual in dropped]
        except Impossible:
            return math.inf
        body = loops.forward_body.computation
        saved = sum(self._costs.of(body.by_name[residual.writer], body) for residual in dropped)
        return (loops.trips or 0) * (recipes.seconds(wanted) - saved) / self._total


def numbered(module: HloModule, dropped: Mapping[Loops, Sequence[Residual]]) -> Dropped:
    """Converts residuals to numbers, since names differ between processes.

    For each pair of loops these are the index of the caller in `module.sequential`, the indices of the forward and the
    backward loop among the caller's instructions, and a tuple of `Residual.place`.
    """
    sequential = [c.name for c in module.sequential]
    pairs = []
    for loops, residuals in dropped.items():
        names = tuple(loops.caller.by_name)
        at = sequential.index(loops.caller.name), names.index(loops.forward.name), names.index(loops.backward.name)
        pairs.append((*at, tuple(sorted(residual.place for residual in residuals))))
    return tuple(pairs)


def named(module: HloModule, dropped: Dropped) -> dict[Loops, list[Residual]]:
    """Converts numbers to residuals: the inverse of `numbered`.

    Raises:
      PlanError: the module has no such loops, or not these residuals.
    """
    pairs = {numbered(module, {loops: ()})[0][:3]: loops for loops in loops_of(module)}
    residuals = {}
    for *at, places in dropped:
        loops = pairs.get((at[0], at[1], at[2]))
        by_place = {} if loops is None else {r.place: r for r in loops.residuals if loops.readings(r)}
        if loops is None or not by_place.keys() >= set(places):
            raise PlanError(f"{module.name}: the plan drops residuals that its loops do not have")
        residuals[loops] = [by_place[place] for place in places]
    return residuals


class Impossible(PlanError):
    """Raised if a dropped residual cannot be computed in the backward loop."""

    def __init__(self, loops: Loops) -> None:
        super().__init__(
            f"{loops.module.name}: {loops.backward.name!r} cannot do without a residual of its forward loop"
        )


class Step(NamedTuple):
    """An instruction to add to the backward loop's body.

    Attributes:
      kind: "given": a part of the loop's carried tuple, which exists already; "index": the index at which the loop
        reads slices; "slice": a slice of a residual; "undo": the inverse of a bitcast or of a copy into another layout;
        "clone": an instruction of the forward loop, with all that it fuses; "part": a fusion of the forward loop,
        computed up to one of its instructions.
      what: for "given" the index in the tuple; for "index" the instruction that computes it; for "slice" the residual;
        else the instruction to undo or to clone, or the last one of the part.
      operands: numbers of the steps that it reads; for "part", in the order of `cuts`.
      cuts: for "part": names of the instructions inside of the fusion that its operands replace.
      seconds: estimated run time in one trip.
    """

    kind: Literal["given", "index", "slice", "undo", "clone", "part"]
    what: int | Residual | Reference
    operands: tuple[int, ...]
    cuts: tuple[str, ...]
    seconds: float


class Recipes:
    """Plans the steps that compute slices of dropped residuals in the backward loop.

    Args:
      loops: the forward and the backward loop.
      kept: residuals that are not dropped.
      costs: run times of the module's instructions.

    Attributes:
      steps: all steps so far; operands have lower numbers.
    """

    def __init__(self, loops: Loops, kept: Collection[Residual], costs: RunTimes) -> None:
        self._loops, self._forward, self._costs = loops, loops.forward_body, costs
        self.steps: list[Step] = []
        self._step_of: dict[int, int] = {}  # number of a value -> step that computes it
        self._impossible: set[int] = set()
        self._depth = 0
        self._kept: dict[int, tuple[Residual, tuple[Reference, ...]]] = {}
        for residual in kept:
            for number, back in self._ways_back(residual):
                if number not in self._kept or len(back) < len(self._kept[number][1]):
                    self._kept[number] = residual, back

    def of(self, residual: Residual) -> int:
        """Adds the steps that compute the slice of a residual; returns the number of the last one.

        Raises:
          Impossible: it cannot be computed.
        """
        return self._step(residual.update)

    def seconds(self, wanted: Sequence[int]) -> float:
        """Estimates the run time in one trip of some steps and all that they need, in seconds."""
        return sum(self.steps[number].seconds for number in self.needed(wanted))

    def needed(self, wanted: Sequence[int]) -> list[int]:
        """Returns the numbers of some steps and of all that they need, operands first."""
        needed = set(wanted)
        pending = list(needed)
        while pending:
            for number in self.steps[pending.pop()].operands:
                if number not in needed:
                    needed.add(number)
                    pending.append(number)
        return sorted(needed)

    def _ways_back(self, residual: Residual) -> Iterator[tuple[int, tuple[Reference, ...]]]:
        """Yields the numbers of values that a slice contains, each with the instructions to undo for it, last first."""
        reference = residual.update
        back: tuple[Reference, ...] = ()
        while True:
            reference = self._forward.origin(reference)
            yield self._forward.number[reference], back
            if self._forward.instruction(reference).opcode not in _BACK:
                return
            back = (*back, reference)
            (reference,) = self._forward.operands(reference)

    def _add(self, kind: str, what: object, operands: Sequence[int], seconds: float, cuts: Sequence[str] = ()) -> int:
        self.steps.append(Step(kind, what, tuple(operands), tuple(cuts), seconds))  # type: ignore[arg-type]
        return len(self.steps) - 1

    def _step(self, reference: Reference) -> int:
        number = self._forward.number[reference]
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
        first = self._forward.number[self._forward.origin(residual.update)]
        if first not in self._step_of:
            size = residual.bytes // (self._loops.trips or 1)
            self._step_of[first] = self._add("slice", residual, (), self._costs.of_moving(size))
        step = self._step_of[first]
        for reference in back:
            i = self._forward.instruction(reference)
            seconds = 0.0 if i.opcode == "bitcast" else self._costs.of_moving(i.shape.bytes)
            step = self._add("undo", reference, (step,), seconds)
        return step

    def _computed(self, reference: Reference) -> int:
        (scope, _), i = reference, self._forward.instruction(reference)
        if scope and i.opcode == "parameter":
            return self._step(("", self._forward.computation.by_name[scope].operands[i.attributes.parameter_number]))
        if i.opcode in ("bitcast", "constant"):
            return self._add("clone", reference, [self._step(each) for each in self._forward.operands(reference)], 0.0)
        if scope:
            return self._part(reference)
        if i.opcode == "get-tuple-element":
            return self._loop_value(i)
        if not is_repeatable(self._loops.module, i, expensive=True):
            raise Impossible(self._loops)
        if i.opcode == "fusion" and i.attributes.fusion_kind == "kLoop":
            try:
                return self._part(self._forward.origin(reference))
            except Impossible:
                pass
        operands = [self._step(each) for each in self._forward.operands(reference)]
        return self._add("clone", reference, operands, self._costs.of(i, self._forward.computation))

    def _loop_value(self, i: Instruction) -> int:
        loops, place = self._loops, i.attributes.tuple_index
        if i.operands[0] == self._forward.computation.parameters[0].name:
            if place in loops.shared:
                return self._add("given", loops.shared[place], (), 0.0)
            if place == loops.counter and loops.index and loops.backward_body.instruction(loops.index).shape == i.shape:
                return self._add("index", loops.index, (), 0.0)
        raise Impossible(loops)

    def _part(self, reference: Reference) -> int:
        """Adds a step that computes a fusion up to an instruction, from its operands or from kept values inside it."""
        scope, end = reference
        forward, inside = self._forward, self._forward.inside(reference[0])
        cuts: list[str] = []
        within, pending = {end}, [end]
        while pending:
            for name in inside.by_name[pending.pop()].operands:
                if name in within or name in cuts:
                    continue
                is_input = forward.number[scope, name] in self._kept or forward.is_parameter((scope, name))
                if is_input and inside.by_name[name].opcode != "constant":
                    cuts.append(name)
                else:
                    within.add(name)
                    pending.append(name)
        seconds = self._costs.of(forward.computation.by_name[scope], forward.computation)
        if end == inside.root.name and all(forward.is_parameter((scope, name)) for name in cuts):
            operands = [self._step(each) for each in forward.operands(("", scope))]
            return self._add("clone", ("", scope), operands, seconds)
        contracts = any((scope, name) in forward.contracted for name in within)
        if contracts and not self._contracts_alike(reference, within, cuts):
            raise Impossible(self._loops)
        return self._add("part", reference, [self._step((scope, name)) for name in cuts], seconds, cuts)

    def _contracts_alike(self, end: Reference, within: Collection[str], cuts: Collection[str]) -> bool:
        """True if LLVM contracts the same products and sums (fused multiply-add) in a part of a fusion as in the whole.

        This requires the same loops around them, no product separated from its sum, and no computed value of the part
        that the rest of the fusion reads.
        """
        scope, inside = end[0], self._forward.inside(end[0])
        return (
            end[1] == inside.root.name
            and not any(inside.by_name[name].called for name in within)
            and not any((scope, name) in self._forward.products for name in cuts)
            and all(user.name in within for name in within for user in inside.users[name] if _is_computed(inside, name))
        )


def _is_computed(inside: Computation, name: str) -> bool:
    """True unless an instruction of a fusion consists of constants, iotas and broadcasts only."""
    return inside.by_name[name].opcode not in ("constant", "iota", "broadcast") or any(
        _is_computed(inside, operand) for operand in inside.by_name[name].operands
    )
