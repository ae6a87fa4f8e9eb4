"""Compiled programs as text: their instructions, and graphs to compile for."""

import math
import re
from typing import NamedTuple

import jax
import numpy as np
from device_graphs import random_graphs

from graphrl.costs.device.decode import slot_layout
from graphrl.graphs.padding import PaddedGraph, Sizes, pad_batch

GRAPHS, LANES = 2, 20
L = GRAPHS * LANES
# Larger than the graphs, so that every state array is larger than all other results of a step.
SIZES = Sizes(ops=160, tensors=168, slots=160 + 80, rows=240, uses=320, controls=40, shares=0)
SLOTS, BLOCKS = slot_layout(SIZES)
IN_PLACE = ("scatter", "dynamic-update-slice")
# Compiler options as for users, unlike tests/conftest.py; since jax 0.11 there is no other way.
AS_FOR_USERS: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {}
NO_WORK = ("get-tuple-element", "tuple", "parameter", "bitcast", "constant")


class Instruction(NamedTuple):
    name: str
    elements: int  # elements of the largest array in its result
    opcode: str
    calls: tuple[str, ...]  # computations
    text: str


_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_CALLS = re.compile(r"(?:calls|to_apply|body|condition|\w+_computations?)=(?:\{([^}]*)\}|%?([\w.\-]+))")


class Module:
    """The text of a lowered program's HLO module, compiled as for users."""

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        text = lowered.compile(compiler_options=AS_FOR_USERS).as_text()
        assert text is not None
        self.computations: dict[str, list[Instruction]] = {}
        instructions: list[Instruction] = []
        for line in text.splitlines():
            if head := _COMPUTATION.match(line):
                instructions = self.computations.setdefault(head[1], [])
            elif match := _INSTRUCTION.match(line):
                shapes = [shape.split(",") for shape in re.findall(r"\w+\[([\d,]*)\]", match[2])]
                elements = max((math.prod(int(size) for size in shape if size) for shape in shapes), default=0)
                calls = [name.strip("% ") for groups in _CALLS.findall(line) for name in "".join(groups).split(",")]
                instructions.append(Instruction(match[1], elements, match[3], tuple(calls), line.strip()))

    def loops(self, carries: str) -> list[Instruction]:
        """The whiles that carry an array of this type and shape."""
        everything = [instruction for body in self.computations.values() for instruction in body]
        whiles = [instruction for instruction in everything if instruction.opcode == "while"]
        return [loop for loop in whiles if carries in loop.text.split(" while(")[0]]

    def body(self, loop: Instruction) -> list[Instruction]:
        """The body of a while, nested loops and calls included, but not fused computations."""
        names = [name.strip("% ") for name in re.findall(r"body=(%?[\w.\-]+)", loop.text)]
        every: list[Instruction] = []
        while names:
            own = self.computations[names.pop()]
            every += own
            names += [call for each in own if each.opcode in ("while", "call", "conditional") for call in each.calls]
        return every

    def made_anew(self, loop: Instruction, elements: int) -> list[str]:
        """Instructions in a loop that write a whole array of at least `elements` elements: all but updates in place."""
        return [
            instruction.text
            for instruction in self.body(loop)
            if instruction.elements >= elements and not self._is_in_place(instruction)
        ]

    def _is_in_place(self, instruction: Instruction) -> bool:
        if instruction.opcode == "fusion":
            fused = [inner for call in instruction.calls for inner in self.computations[call]]
            copied = any(inner.opcode == "copy" and inner.elements >= instruction.elements for inner in fused)
            return fused[-1].opcode in IN_PLACE and not copied
        return instruction.opcode in IN_PLACE + NO_WORK


def padded(graphs: int = GRAPHS) -> PaddedGraph:
    return pad_batch(random_graphs(np.random.default_rng(0), graphs, SIZES), SIZES)
