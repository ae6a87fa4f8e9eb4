"""A computation's message while instructions are added and removed, by name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphrl.graphs.readers.hlo.proto import in_order, replace, shape_message
from graphrl.xla.recompute.rewrite import LOCAL, LOCAL_BITS


class Editing:
    """A computation of a message that is changed.

    Attributes:
      message: the computation's.
      by_name: messages of its instructions.
    """

    def __init__(self, message: Any, order: Sequence[str] = ()) -> None:
        """Args: `order` in which it runs, by name; none for what is fused."""
        self.message = message
        self.by_name: dict[str, Any] = {i.name: i for i in message.instructions}
        self._order = list(order)
        self._base = message.id << LOCAL_BITS
        self._next = max((i.id & LOCAL for i in message.instructions), default=-1) + 1
        self._gone: set[int] = set()

    @property
    def root(self) -> Any:
        """The instruction whose result is the computation's."""
        return next(i for i in self.by_name.values() if i.id & LOCAL == self.message.root_id & LOCAL)

    def add(self, template: Any, name: str, operands: Iterable[str]) -> Any:
        """A new instruction that is like another one, but for what it reads and calls."""
        i = type(template)()
        i.CopyFrom(template)
        i.name, i.id = name, self._base | self._next
        i.operand_ids[:] = [self.by_name[operand].id for operand in operands]
        i.control_predecessor_ids[:] = []
        i.called_computation_ids[:] = []
        self.by_name[name] = i
        self._next += 1
        return i

    def operands(self, i: Any) -> list[Any]:
        """What an instruction reads."""
        by_id = {each.id & LOCAL: each for each in self.by_name.values()}
        return [by_id[k & LOCAL] for k in i.operand_ids]

    def users(self, name: str) -> list[Any]:
        """Who reads an instruction."""
        own = self.by_name[name].id & LOCAL
        return [i for i in self.by_name.values() if own in [k & LOCAL for k in i.operand_ids]]

    def read_instead(self, old: str, new: str) -> None:
        """Has all who read an instruction read another."""
        own, other = self.by_name[old].id & LOCAL, self.by_name[new].id
        for i in self.users(old):
            i.operand_ids[:] = [other if k & LOCAL == own else k for k in i.operand_ids]

    def remove(self, name: str) -> Any:
        """Takes an instruction out, which nobody reads any more."""
        gone = self.by_name.pop(name)
        self._gone.add(gone.id)
        return gone

    def sweep(self, names: Iterable[str], may_go: Callable[[Any], bool]) -> list[Any]:
        """Takes out those instructions that nobody reads, and then what only they read.

        Returns:
          What is gone.
        """
        gone, todo = [], list(names)
        while todo:
            i = self.by_name.get(todo.pop())
            if i is not None and i is not self.root and may_go(i) and not self.users(i.name):
                todo += [each.name for each in self.operands(i)]
                gone.append(self.remove(i.name))
        return gone

    def finish(self) -> list[int]:
        """Writes the computation's instructions, new ones right before the first who reads them.

        Returns:
          Ids in the order in which they run.
        """
        old = [self.by_name[name] for name in self._order if name in self.by_name]
        placed = {i.name for i in old}
        order = in_order([*old, *(i for i in self.by_name.values() if i.name not in placed)], self._gone)
        replace(self.message.instructions, in_order(list(self.by_name.values()), self._gone))
        return [i.id for i in order]


def without_parts(shape: bytes, places: Iterable[int]) -> bytes:
    """A tuple's shape without some of its parts."""
    message = shape_message(shape)
    for place in sorted(places, reverse=True):
        del message.tuple_shapes[place]
    return bytes(message.SerializeToString())
