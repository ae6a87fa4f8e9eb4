"""ONNX models as graphs.

- reader.py: `parse_onnx`; wire.py: the protobuf without weights; model.py: opens and checks it;
- functions.py: functions in the places of their calls; bodies.py: branches that are known to be taken;
- shapes.py: all shapes; inference.py: ONNX's inference; fold.py: shapes that are computed; loops.py: results of loops;
- sequences.py: what sequences and optionals hold;
- declared.py: what the model declares and the user gives, where nothing follows; checks.py: what cannot be;
- values.py: what is known of tensors;
- flops.py, work.py: FLOPs and run times.
"""
