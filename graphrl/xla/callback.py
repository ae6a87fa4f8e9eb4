"""XLA's callback during compilation, one for the process, and the rules that answer for marked modules.

XLA calls back on a separate thread and passes only the scheduled module. A caller that wants to change a compilation
therefore puts a mark into the module's name, and registers a rule for that mark here. Modules without a mark pass
unchanged.
"""

import dataclasses
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import Computation, HloModule, OutputAlias, parse_module

Scheduler = Literal["default", "memory"]

# Name of a computation -> names of all its instructions in their new order.
Orders = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A rule's answer: the schedule with which XLA compiles a module.

    Attributes:
      module: the serialized module with a schedule; None for XLA's own schedule.
      scheduler: the XLA scheduler that makes XLA's own schedule.
      aliases: results that share the buffers of donated arguments (`donation.preserve_donation`).
      temp_bytes: predicted bytes of temporaries under this schedule; None to skip the check.
      undonated_bytes: bytes of results that XLA's own schedule writes into donated arguments, but this one does not.
      on_misprediction: called with (measured bytes, bytes under XLA's own schedule, reason). Reason is "" if the
        prediction was wrong: XLA's own schedule is used if it needs no more in total. Otherwise it states in one line
        why XLA's own schedule is used.
      fallback: the rule to compile by instead if the prediction was wrong, and measured temporaries and undonated
        results exceed `fallback_bytes`.
    """

    module: bytes | None = None
    scheduler: Scheduler = "default"
    aliases: tuple[OutputAlias, ...] = ()
    temp_bytes: int | None = None
    undonated_bytes: int = 0
    on_misprediction: Callable[[int, int, str], None] = lambda measured, default, why: None
    fallback: "Rule | None" = None
    fallback_bytes: int = 0


# Takes a module (its name without the mark) and returns an answer, other orders of some of its computations, or None
# for XLA's own schedule. An exception ends the compilation before XLA generates code; `reason` returns it.
Rule = Callable[[HloModule], Answer | Orders | None]

_NAME = "graphrl"
_SEPARATOR = "_graphrl_"
_MARK = re.compile(_SEPARATOR.encode() + rb"([0-9a-f]{16})")
_TICKET = re.compile(r"graphrl stopped this compilation: ([0-9a-f]{16})")
_HEAD = 4096  # bytes: the module's name is the first field of its proto
_LONGEST = 200  # most characters of a name before its mark, which must be in the head

_rules: dict[str, Rule] = {}
_reasons: dict[str, Exception] = {}
_registering = threading.Lock()
_registered = False


class Unplanned(Exception):
    """Raised by a rule that has no schedule for a module yet.

    Attributes:
      module: the module as XLA scheduled it.
      seconds: time in seconds that XLA took until the rule raised.
    """

    def __init__(self, module: HloModule) -> None:
        super().__init__(module.name)
        self.module, self.seconds = module, 0.0


class _Stopped(Exception):
    """Ends a compilation; the reason is in `_reasons` under the ticket in its message."""


def register() -> None:
    """Registers the callback, once in a process.

    Raises:
      ImportError, AttributeError, NotImplementedError: this jax or jaxlib has no such hook.
    """
    global _registered
    from jax.extend import xla

    with _registering:
        if not _registered:
            xla.register_hlo_module_transformation(
                _on_module, name=_NAME, stage=xla.PipelineStage.POST_SCHEDULER, platforms="cpu"
            )
            _registered = True


def marked(name: str, mark: str) -> str:
    """Adds a mark (16 lower-case hexadecimal digits) to a name, clipped to 200 characters; replaces an earlier mark."""
    return f"{name.partition(_SEPARATOR)[0][:_LONGEST]}{_SEPARATOR}{mark}"


def set_rule(mark: str, rule: Rule) -> None:
    """Registers the rule for all modules whose names have this mark."""
    _rules[mark] = rule


def drop_rule(mark: str) -> None:
    """Removes the rule of a mark, if any: its modules pass unchanged."""
    _rules.pop(mark, None)


def reason(error: BaseException) -> Exception | None:
    """Returns the exception by which a rule ended a compilation, if `error` is jax's report of it; else None.

    It is removed from the table: a second call returns None.
    """
    ticket = _TICKET.search(str(error))
    return _reasons.pop(ticket[1], None) if ticket else None


def keep_reason(error: BaseException, reason: Exception) -> None:
    """Stores an exception that `reason` returned, for the next call of `reason`."""
    ticket = _TICKET.search(str(error))
    assert ticket is not None
    _reasons[ticket[1]] = reason


def rule_of(name: bytes) -> Rule | None:
    """Returns the rule for the mark that `name` contains, or None. `name` may have bytes before and after it."""
    mark = _MARK.search(name)
    return _rules.get(mark[1].decode()) if mark else None


def _on_module(data: bytes) -> bytes | None:
    rule = rule_of(data[:_HEAD])
    if rule is None:
        return None
    try:
        module = parse_module(data, "XLA's module")
        module = dataclasses.replace(module, name=module.name.partition(_SEPARATOR)[0])
        answer = rule(module)
        if isinstance(answer, Answer):
            return answer.module
        return None if answer is None else rescheduled(module, answer)
    except Exception as error:  # XLA keeps only the text of an exception
        ticket = secrets.token_hex(8)
        _reasons[ticket] = error
        raise _Stopped(f"graphrl stopped this compilation: {ticket}") from None


def rescheduled(module: HloModule, orders: Orders) -> bytes:
    """Sets the orders of some computations in `module.message`, in place; returns the serialized module.

    Raises:
      PlanError: an order does not have its computation's instructions once each, inputs first.
    """
    scheduled = {s.key: s.value for s in module.message.schedule.sequences}
    numbers = {c.name: c for c in module.message.computations}
    for name, order in orders.items():
        check_sequence(module, order, module.computations[name])
        ids = {i.name: i.id for i in numbers[name].instructions}
        scheduled[numbers[name].id].instruction_ids[:] = [ids[instruction] for instruction in order]
    return module.message.SerializeToString()


def check_sequence(module: HloModule, sequence: Sequence[str], computation: Computation | None = None) -> None:
    """Raises PlanError unless `sequence` is a valid order of a computation, by default the entry.

    A valid order names every instruction once, after its operands and control predecessors. The computation must be
    scheduled.
    """
    computation = computation or module.entry
    if computation.name not in module.schedule:
        raise PlanError(f"{module.name}: the module must be scheduled")
    place = {name: k for k, name in enumerate(sequence)}
    if len(place) != len(sequence) or place.keys() != computation.by_name.keys():
        raise PlanError(
            f"{module.name}: {len(sequence)} instructions in the schedule: must be each of the "
            f"{len(computation.by_name)} of computation {computation.name!r} once"
        )
    for instruction in computation.instructions:
        for before in (*instruction.operands, *instruction.control_predecessors):
            if place[before] > place[instruction.name]:
                raise PlanError(f"{module.name}: the schedule has {instruction.name!r} before {before!r}, its input")
