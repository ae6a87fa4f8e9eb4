"""Fusion: the ops that are computed inside the kernels that read them, and the run times of kernels.

An op may be **inlined**: it does not run as a separate kernel; every kernel that reads its output recomputes it. That
is legal if

- its type is elementwise or moves data (`problem.py` has the one table, for the names of jaxprs, HLO and ONNX),
- it has one output, which has a reader and which the graph does not keep, and no control edge starts or ends at it,
- each of its readers is elementwise, moves data or reduces,
- neither it nor any of its readers reads more tensors than a kernel has arguments.

A **kernel** is an op that is not inlined, its root, and the inlined ops that reach it through inlined ops alone. All of
these are its members. Its arguments are the distinct tensors that members read and inlined ops do not write, external
inputs included. By the roofline (`graphs/roofline.py`) it takes launch + max(operations / peak, bytes / bandwidth)
seconds: the operations of all members, each counted once in a kernel, and the bytes of its arguments and of its root's
outputs. A kernel whose members all only rename (reshape, bitcast) takes no time, even one of a single op. A kernel has
at most 64 members and 40 arguments, except for single ops that read more.

This is the roofline's time and ignores the run times of the graph. A loop counts with all its operations, but with one
launch and only the bytes of its inputs and outputs. A tensor of which a member takes a part counts in full.

The ops of the fused graph are kernels, named by their roots. It is an ordinary computation graph, and `graphrl.costs`
applies to its plans. A kernel runs on one device, so an inlined op may be computed on several devices, which saves
transfers.

**Deciding.** Every op has a priority from 0; 0 is never inlined, and at first every other legal op is. Ops take turns
in topological order. At its turn an op gathers itself and everything that the inlined ops that it reads have gathered.
While that breaks a limit, the inlined op of least priority (ties: the lower index) that it reads becomes a kernel. This
may give an op of an earlier turn one argument more, so rounds are repeated, with ever fewer inlined ops, until nothing
changes.

`exact` decides and costs on the host in int64 and float64, `device` the same as pure JAX.
"""
