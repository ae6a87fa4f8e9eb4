"""`graphrl convert IN OUT`: converts any readable model to graph JSON."""

import argparse
from typing import Any

from graphrl.commands.common import add_common, add_model, check_json_name, check_outputs, print_json
from graphrl.files import quote_path
from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets.sets import model_graph
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.json import write_json
from graphrl.units import format_bytes, format_seconds

DESCRIPTION = """Convert a model to graph JSON (format graphrl-graph, version 1).

If the command fails, OUT stays as it was."""

EXAMPLES = """examples:
  graphrl convert model.onnx graph.json
  graphrl convert model.onnx graph.json.gz --chip h100-sxm --dim batch=32
      with the run times of another chip and a batch of 32, gzipped
  graphrl convert layered:200@7 graph.json
      a generated graph of 200 ops, with seed 7
  graphrl convert zoo:resnet50/inference/b1/jaxpr resnet50.json --layers
      a program of the model zoo, coarsened to its layers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "input",
        metavar="IN",
        help="graph JSON, ONNX, a compiled XLA module (HLO text or proto), CostGraphDef text or a standard task graph, "
        "recognised by content, also gzipped; or zoo:NAME, or a generated graph such as layered:200@7",
    )
    parser.add_argument("output", metavar="OUT", help="file to write: .json, or .json.gz to gzip it")
    add_model(parser)
    parser.add_argument(
        "--layers",
        action="store_true",
        help="coarsen the model to its layers: each a convolution or product with the cheap ops after it",
    )
    add_common(parser, seed="has no effect: nothing here is random")


def run(args: argparse.Namespace) -> int:
    """Converts the model and writes the file; returns the exit code."""
    check_json_name("OUT", args.output)
    check_outputs({"OUT": args.output}, args.input)
    graph = model_graph(args.input, chip=args.chip, dims=dict(args.dim), limits=args.read_limits)
    if args.layers:
        graph = coarsened(graph)
    write_json(graph, args.output)
    summary = _summary(graph)
    if args.json:
        print_json({**summary, "output": args.output})
        return 0
    ops = f"{summary['ops']:,} ops ({format_seconds(summary['runtime'])})"
    tensors = f"{summary['tensors']:,} tensors ({format_bytes(summary['tensor_bytes'])})"
    weights = f"{format_bytes(summary['weight_bytes'])} of weights"
    print(f"{quote_path(args.output)}: graph {graph.name!r}, {ops}, {tensors}, {weights}")
    return 0


def _summary(graph: ComputationGraph) -> dict[str, Any]:
    a = graph.arrays
    return {
        "graph": graph.name,
        "ops": a.num_ops,
        "tensors": a.num_tensors,
        "uses": len(a.use_op),
        "tensor_bytes": int(a.tensor_bytes.sum()),
        "weight_bytes": int(a.weight_bytes.sum()),
        "flops": int(sum(op.flops for op in graph.ops)),
        "runtime": float(a.runtime.sum()),
    }
