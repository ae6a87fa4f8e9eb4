"""From clones of a graph's ops to clones of instructions: what is read through views needs the views again."""

from graphrl.graphs.readers.hlo import HloProgram
from graphrl.xla.recompute.candidates import Routes
from graphrl.xla.recompute.clones import Clone, clone_names


def wired(
    program: HloProgram, routes: Routes, clones: list[tuple[int, frozenset[int]]]
) -> tuple[list[str], tuple[Clone, ...]]:
    """Instructions for clones of ops.

    Args:
      program: of n ops.
      clones: the op of each and the nodes that read it; the k-th is node n + k.

    Returns:
      The instruction of every node, and all clones: those of the ops first, then those of views.
    """
    ops = [op.name for op in program.graph.ops]
    originals = ops + [ops[op] for op, _ in clones]
    users: list[dict[str, None]] = [{} for _ in clones]
    views: dict[tuple[int, str], int] = {}  # of which clone, of which view -> its number among the views
    view_users: list[dict[str, None]] = []
    ways = [
        (k, node, way)
        for k, (op, readers) in enumerate(clones)
        for node in sorted(readers)
        for way in routes.views(originals[node], ops[op]) or ()
    ]
    for k, _, way in ways:
        for view in way:
            if (k, view) not in views:
                views[k, view] = len(view_users)
                view_users.append({})
    names = clone_names(program.module, [*originals[len(ops) :], *(view for _, view in views)])
    node_names = ops + names[: len(clones)]
    view_names = names[len(clones) :]
    for k, node, way in ways:
        reads = users[k]
        for view in way:
            number = views[k, view]
            reads[view_names[number]] = None
            reads = view_users[number]
        reads[node_names[node]] = None
    made = [Clone(names[k], ops[op], tuple(users[k])) for k, (op, _) in enumerate(clones)]
    made += [Clone(view_names[number], view, tuple(view_users[number])) for (_, view), number in views.items()]
    return node_names, tuple(made)
