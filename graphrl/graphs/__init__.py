"""Computation graphs: definition, file format, readers and data sets.

A `ComputationGraph` is a directed acyclic multigraph on the host, of any size. An **op** has a name, a type, a
`runtime` in seconds, `workspace_bytes` (memory allocated only while it runs), `weight_bytes` (resident on its device
for the whole run) and `flops`. An op reads tensors, writes any number of tensors of known `bytes`, and may have control
predecessors (`after`). A **tensor** has one producer and any number of consumers. Names of ops are unique, and so are
names of tensors. Ops are listed in any order; an op's index is its position. A tensor that no op writes is declared as
an external input: it is always available and costs nothing in an order. Readers count the bytes of weights with the ops
that read them.

Compiled programs share buffers. An output may declare `alias`, the name of an input of its op. On its op's device the
output always occupies that tensor's buffer, which lives until the last use of either, and costs nothing (an alias of an
external input costs nothing at all there). The `bytes` of an alias are the size of a copy on another device. Or an
output may declare `reuses`: if the op is the last use of that input, the output takes over its buffer, which must be at
least as large. Then nothing is allocated for the output, and the input's bytes are not freed but become the output's.
No output has both.

For pipelined execution (the objective `max_load` of `graphrl.costs`, graphs/graph.py) an op, a tensor and the graph
have these optional fields, in this order:

    "pipelined": {"cpu_runtime": 2.0, "cpu_only": false, "colocation": 3, "backward": false}
    "transfer_seconds": 0.5
    "machine": {"accelerators": 6, "cpus": 1, "memory_bytes": 17179869184}

Ops of equal `colocation` share one device under every objective. The other fields apply to pipelined execution only.

**File format** `graphrl-graph`, version 1, JSON, gzipped or not:

    {"format": "graphrl-graph", "version": 1, "name": "tiny",
     "inputs": [{"name": "x", "bytes": 4}],
     "ops": [{"name": "a", "type": "input", "runtime": 1.0, "inputs": ["x"], "after": [],
              "outputs": [{"name": "a0", "bytes": 4}], "workspace_bytes": 0, "weight_bytes": 0, "flops": 0},
             {"name": "b", "inputs": ["a0"], "outputs": [{"name": "b0", "bytes": 4, "alias": "a0"}]},
             {"name": "c", "inputs": ["b0"], "outputs": [{"name": "c0", "bytes": 4, "reuses": "b0"}]}],
     "outputs": ["c0"]}

`outputs` names the tensors that stay in memory to the end. Every field except the `name` of an op or a tensor may be
omitted and is then empty or 0. Integers may be written as 1000000, 1e6 or 1000000.0, and are exact to the last digit,
also beyond 2^53. A file is rejected, with one line that names the file and the op, for: a cycle (one is printed), a
name that appears twice or is undefined, a byte count that is negative or not an integer, a run time that is negative or
not finite, an unknown or repeated key, another version, truncated JSON, or more than 2^31 - 1 ops or edges. Files are
written atomically.

On the device a graph is a `PaddedGraph` (graphs/padding.py): arrays of fixed sizes from a small set of buckets, so that
a mixed set of graphs compiles only a few programs.
"""
