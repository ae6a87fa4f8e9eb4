"""XLA's HLO modules, as text or protobuf, as graphs.

- reader.py: `read_hlo`; head.py: how such a file begins;
- proto.py: protobuf messages, shapes and their bytes; module.py: a module, its instructions, and its fingerprint, by
  which two modules are the same program;
- values.py: buffers of values, and which of them share one; work.py: ops of the graph, FLOPs and run times.
"""
