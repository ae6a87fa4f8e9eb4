"""The `graphrl` command: finds the subcommand, runs it, and turns every failure into one line and an exit code.

Exit codes: 0 done, 1 failed (a bad file, no plan within the memory limit, interrupted with nothing to show), 2 usage.
SIGINT (Ctrl-C) and SIGTERM are answered immediately, see `graphrl.signals`.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from graphrl.commands.parser import Parser
from graphrl.errors import GraphrlError, ProblemError, shortened
from graphrl.process import installed_version
from graphrl.signals import interrupt_on_signals

# name -> help; each is a module of graphrl.commands with DESCRIPTION, EXAMPLES, `add_arguments(parser)` and `run(args)
# -> exit code`, imported only when it runs
COMMANDS = {
    "train": "train an agent, or resume its training",
    "evaluate": "compare a trained agent with classical methods on held-out graphs",
    "plot": "draw learning curves of training runs, with intervals over seeds",
    "bench": "measure steps, orders, plans and maps a second on this machine",
    "optimize": "search for a plan of a model: a device for each op, and an order",
    "compare": "compare methods on many graphs at equal budget",
    "checkpoint": "choose what a training step keeps and what it recomputes, to save memory",
    "map": "assign a model's weights and tensors to the memories of a chip",
    "shard": "choose how each op is split over a mesh of devices, within a memory limit",
    "convert": "convert a model to graph JSON",
}

_DESCRIPTION = "\n".join(
    (
        "Train reinforcement learning agents that optimise computation graphs, and optimise graphs with them.",
        "\ncommands:",
        *(f"  {name:12}{text}" for name, text in COMMANDS.items()),
    )
)

_EXAMPLES = """examples:
  graphrl train regal --out out/regal
      train REGAL on random graphs
  graphrl evaluate out/regal
      compare it with classical methods on graphs that it has not seen
  graphrl optimize model.onnx --objective makespan --devices 2 --output plan.json --plot plan.png
      find a fast schedule of your model on two devices
  graphrl checkpoint zoo:distilbert/training/b8/jaxpr --plot curve.png
      memory of a training step against its slowdown

`graphrl COMMAND --help` describes a command and all its options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` and returns the exit code.

    Without `argv` it runs the process's arguments, answers SIGINT and SIGTERM immediately, and exits the process after
    a KeyboardInterrupt. If that came while JAX was tracing or compiling, Python would crash at the teardown of JAX, and
    the exit code would be that of the crash.
    """
    if argv is not None:
        return _run(argv)
    with interrupt_on_signals() as signals:
        code = _run(sys.argv[1:])
        if signals.raised:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        args = _parser(arguments).parse_args(arguments)
        return int(args.run(args))
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:  # the reader of our output has closed it, as `| head` does
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints an error at exit
        return 1
    except ProblemError as error:
        return _fail(str(error), 2)
    except GraphrlError as error:
        return _fail(str(error), 1)
    except MemoryError:
        return _fail("out of memory: the model or the number of devices is too large for this machine", 1)
    except KeyboardInterrupt:
        return _fail("interrupted before there was a result", 1)
    except OSError as error:
        return _fail(str(error), 1)
    except RuntimeError as error:
        jax = sys.modules.get("jax")
        if jax is None or not isinstance(error, jax.errors.JaxRuntimeError):  # a fault of graphrl
            raise
        return _fail(f"the device failed: {str(error).strip().splitlines()[0]}", 1)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="graphrl", usage="graphrl [-h] [--version] COMMAND ...", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    version = f"graphrl {installed_version() or 'unknown (not installed)'}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    # argparse would print COMMANDS less readably
    subparsers = parser.add_subparsers(prog="graphrl", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    requested = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in COMMANDS:
        if name != requested:
            subparsers.add_parser(name)
            continue
        command = importlib.import_module(f"graphrl.commands.{name}")
        subparser = subparsers.add_parser(name, description=command.DESCRIPTION, epilog=command.EXAMPLES)
        subparser.set_defaults(run=command.run)
        command.add_arguments(subparser)
    return parser


def _fail(message: str, code: int) -> int:
    """Prints one line to standard error."""
    line = " ".join(shortened(message).split())
    with contextlib.suppress(OSError):
        print(f"graphrl: error: {line}", file=sys.stderr)
    return code
