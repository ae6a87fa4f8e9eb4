"""ONNX models as graphs.

- reader.py: `parse_onnx`; wire.py: the protobuf without weights; model.py: opens and checks it;
- shapes.py, fold.py: all shapes, also those that are computed; values.py: what is known of tensors;
- flops.py, work.py: FLOPs and run times.
"""
