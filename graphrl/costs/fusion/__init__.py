"""Fusion: which ops are computed inside the kernels that read them, and what kernels take.

An op may be **inlined**: it does not run by itself; every kernel that reads its output computes it once more. That is
legal where

- its type is elementwise or moves data (`problem.py` has the one table, for the names of jaxprs, HLO and ONNX),
- it has one output, which somebody reads and the graph does not keep, and no control edge begins or ends at it,
- each of its readers is elementwise, moves data or reduces,
- neither it nor any of its readers reads more tensors than a kernel has arguments.

A **kernel** is an op that is not inlined, its root, with the ops that reach it through inlined ops alone: its members.
Its arguments are the distinct tensors that members read and inlined ops do not write, external inputs included. By the
roofline (`graphs/roofline.py`) it takes launch + max(operations / peak, bytes / bandwidth): the operations of all
members, each counted once in a kernel, and the bytes of its arguments and of its root's outputs. A kernel whose members
all only rename (reshape, bitcast) takes nothing, also alone. A kernel has at most 64 members and 40 arguments, but for
single ops that read more.

This is the roofline's time whatever run times the graph states: it counts a loop's operations, but one launch and what
goes in and comes out, and the whole of a tensor of which a member takes a part.

The fused graph has kernels for ops, under the names of their roots: a computation graph like any other, and what
`graphrl.costs` says of plans holds for it. A kernel runs on one device, so an inlined op may be computed on several and
spares transfers.

**Deciding.** Every op has a priority from 0; 0 is never inlined, and at first every other legal op is. Ops take turns
in topological order. At its turn an op gathers itself and what the inlined ops that it reads gathered at theirs; while
that breaks a limit, the inlined op of least priority (ties: the lower index) that it reads becomes a kernel. This may
give an op of an earlier turn one argument more: so turns are taken again, by ever fewer inlined ops, until nothing
changes.

`exact` decides and costs on the host in int64 and float64, `device` the same as pure JAX.
"""
