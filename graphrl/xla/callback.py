"""What XLA asks while it compiles: the one callback of this process, and who answers for which module.

XLA calls back on a thread of its own, with nothing but the scheduled module. So whoever wants to have a say in a
compilation puts a mark into the module's name, and a rule for that mark into the table here. Modules without a mark,
everybody else's, pass untouched.
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

# Names of all instructions of computations, by the computations' names, in the order in which they shall run.
Orders = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a module shall run as.

    Attributes:
      module: serialized and scheduled; None for XLA's own schedule.
      scheduler: of XLA, for its own schedule.
      aliases: results that lie in the buffers of donated arguments (`donation.tied`).
      temp_bytes: that XLA will need for temporaries, as predicted; None if nobody checks.
      undonated_bytes: of results that XLA's own schedule writes into donated arguments, and this one does not.
      mistaken: called where that was not true, with the bytes that it needs, and those that XLA's own schedule needs,
        which stays if all in all it needs no more; or, with a line of why, where XLA's own stays for another reason.
      otherwise: the rule to compile by instead where temporaries and undonated results turn out to be more than
        `otherwise_bytes`.
    """

    module: bytes | None = None
    scheduler: Scheduler = "default"
    aliases: tuple[OutputAlias, ...] = ()
    temp_bytes: int | None = None
    undonated_bytes: int = 0
    mistaken: Callable[[int, int, str], None] = lambda measured, own, why: None
    otherwise: "Rule | None" = None
    otherwise_bytes: int = 0


# What a module (its name without the mark) shall run as: an answer, other orders of some of its computations, or None
# for XLA's own schedule. What it raises ends the compilation before XLA generates code, and comes out of `reason`.
Rule = Callable[[HloModule], Answer | Orders | None]

_NAME = "graphrl"
_SEPARATOR = "_graphrl_"
_MARK = re.compile(_SEPARATOR.encode() + rb"([0-9a-f]{16})")
_TICKET = re.compile(r"graphrl stopped this compilation: ([0-9a-f]{16})")
_HEAD = 4096  # bytes: the module's name is the first field of its proto
_LONGEST = 200  # characters of a name that come before a mark, which must be in the head

_rules: dict[str, Rule] = {}
_reasons: dict[str, Exception] = {}
_registering = threading.Lock()
_registered = False


class Unplanned(Exception):
    """Raised by a rule that has no schedule for a module yet.

    Attributes:
      module: as XLA scheduled it.
      seconds: that XLA took until then.
    """

    def __init__(self, module: HloModule) -> None:
        super().__init__(module.name)
        self.module, self.seconds = module, 0.0


class _Stopped(Exception):
    """Ends a compilation; the reason waits in `_reasons` under the ticket of its message."""


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
    """The name with a mark (16 lower-case hexadecimal digits) in place of the one that it may have."""
    return f"{name.partition(_SEPARATOR)[0][:_LONGEST]}{_SEPARATOR}{mark}"


def set_rule(mark: str, rule: Rule) -> None:
    """From now on `rule` answers for all modules of that mark."""
    _rules[mark] = rule


def drop_rule(mark: str) -> None:
    """Modules of that mark are XLA's own affair again."""
    _rules.pop(mark, None)


def reason(error: BaseException) -> Exception | None:
    """What a rule raised, if `error` is how jax reports that a compilation was ended by it; to be asked once."""
    ticket = _TICKET.search(str(error))
    return _reasons.pop(ticket[1], None) if ticket else None


def keep_reason(error: BaseException, reason: Exception) -> None:
    """Puts back what `reason` took, for the next who asks."""
    ticket = _TICKET.search(str(error))
    assert ticket is not None
    _reasons[ticket[1]] = reason


def rule_of(name: bytes) -> Rule | None:
    """The rule for a module whose name is, or is in, `name`."""
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
    except Exception as error:  # XLA keeps only the text of what passes through it
        ticket = secrets.token_hex(8)
        _reasons[ticket] = error
        raise _Stopped(f"graphrl stopped this compilation: {ticket}") from None


def rescheduled(module: HloModule, orders: Orders) -> bytes:
    """The serialized module with other orders of some computations; `module.message` is changed too.

    Raises:
      PlanError: an order is none of its computation's instructions.
    """
    scheduled = {s.key: s.value for s in module.message.schedule.sequences}
    numbers = {c.name: c for c in module.message.computations}
    for name, order in orders.items():
        check_sequence(module, order, module.computations[name])
        ids = {i.name: i.id for i in numbers[name].instructions}
        scheduled[numbers[name].id].instruction_ids[:] = [ids[instruction] for instruction in order]
    return module.message.SerializeToString()


def check_sequence(module: HloModule, sequence: Sequence[str], computation: Computation | None = None) -> None:
    """Raises PlanError unless `sequence` names every instruction of a computation, by default the entry, once, after
    what it waits for.
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
