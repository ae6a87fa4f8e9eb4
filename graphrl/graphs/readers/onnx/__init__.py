"""ONNX models as graphs.

- reader.py: `parse_onnx`; wire.py: the protobuf without weights; model.py: opens and checks it;
- shapes.py, fold.py: all shapes, also those that are computed; values.py: what is known of tensors;
- bodies.py: branches that are known to be taken; sequences.py: what sequences and optionals hold;
- flops.py, work.py: FLOPs and run times.
"""
