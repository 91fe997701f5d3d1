"""Two texts side by side, line by line: a sequential program and its parallel form, with faults.

Line n of both texts does the same, so that the operator which a report names, in the sequential
text, can be held against the line of a fault, in the parallel one.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

HEADER = [
    "import math",
    "import torch",
    "import torch.nn.functional as F",
    "",
    "def program(t, c):",
]


@dataclass(frozen=True)
class Input:
    """A tensor that a program takes: its whole shape, and how the ranks hold it.

    `kind` is "float", "positive", or "ids" below `high`.
    """

    name: str
    shape: tuple[int, ...]
    cut: tuple[tuple[int, str], ...]
    kind: str = "float"
    high: int = 0


@dataclass(frozen=True)
class Fault:
    """Lines of the parallel text by number, as the fault writes them."""

    kind: str
    lines: dict[int, str]


def relation(cut: Sequence[tuple[int, str]]) -> str:
    """The text of a relation of docs/refine.md."""
    return ", ".join(f"concat {dim} over {axis}" for dim, axis in cut) or "replica"


@dataclass
class Program:
    """A sequential program and its parallel form, and the faults that one may plant."""

    title: str
    mesh: dict[str, int]
    inputs: list[Input]
    outputs: dict[str, tuple[tuple[int, str], ...]]
    sequential: list[str]
    parallel: list[str]
    faults: list[Fault]

    def text(self, ranks: bool, fault: Fault | None = None) -> str:
        lines = list(self.parallel if ranks else self.sequential)
        for number, line in (fault.lines if fault else {}).items():
            lines[number] = _indented(lines[number], line)
        return "\n".join([*HEADER, *lines]) + "\n"

    def places(self, fault: Fault) -> set[int]:
        """The lines of the texts that may be named for a fault, counted from 1.

        Those of the fault itself, those that take what it assigns, in the forward, and those that
        make what it takes, which the backward runs after it.  A reduction over ranks of a loss or
        a gradient is a part of what the sequential program does where it takes the mean over its
        tokens, or where it uses the parameter.
        """
        flow = [_names(line) for line in self.parallel]
        found: set[int] = set()
        for number in fault.lines:
            found |= {number} | self._near(flow, number, 1) | self._near(flow, number, -1)
            if self.sequential[number].strip() == "pass":
                found |= self._summed(flow, number)
            written = _names(fault.lines[number])[1] - flow[number][1]
            found |= {at for at, names in enumerate(flow) if written & names[0]}
        return {number + len(HEADER) + 1 for number in found}

    def _summed(self, flow: list[tuple[set[str], set[str]]], number: int) -> set[int]:
        """The lines whose sum over tokens the ranks complete in a line for them alone."""
        completed = {name.removeprefix("g_") for name in flow[number][1]}
        if "total" in completed:
            return {at for at, names in enumerate(flow[:number]) if "loss" in names[1]}
        parameters = completed & {given.name for given in self.inputs}
        return {at for at, names in enumerate(flow[:number]) if parameters & names[0]}

    def _near(self, flow: list[tuple[set[str], set[str]]], number: int, way: int) -> set[int]:
        """The lines that take what a line assigns, or make what it takes; past mere renamings."""
        found: set[int] = set()
        ahead = [number]
        while ahead:
            at = ahead.pop()
            names = set(flow[at][1] if way > 0 else flow[at][0])
            line = at + way
            while names and 0 <= line < len(flow):
                reads, writes = flow[line]
                hit = names & (reads if way > 0 else writes)
                if hit and line not in found:
                    found.add(line)
                    if _moves_nothing(self.sequential[line]):
                        ahead.append(line)
                names -= writes
                line += way
        return found


def _indented(old: str, new: str) -> str:
    return old[: len(old) - len(old.lstrip())] + new


def _names(line: str) -> tuple[set[str], set[str]]:
    """The names that a line reads and those that it assigns."""
    text = line.strip()
    if text.startswith(("for ", "return")):
        text = text + " pass" if text.startswith("for ") else text.removeprefix("return")
    nodes = [node for node in ast.walk(ast.parse(text.strip())) if isinstance(node, ast.Name)]
    ignored = {"t", "c", "F", "torch", "math", "k", "_a", "_g", "_u"}
    reads = {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - ignored
    return reads, {node.id for node in nodes if isinstance(node.ctx, ast.Store)} - ignored


def _moves_nothing(line: str) -> bool:
    """Whether a line of the sequential text makes no operator."""
    text = line.strip()
    if text == "pass" or text.startswith("for "):
        return True
    if "(" not in text and "=" in text:
        return text.split("=")[1].strip().isidentifier() or "grads" in text
    return "requires_grad_" in text


@dataclass
class Writer:
    """Takes the lines of both texts one by one."""

    sequential: list[str] = field(default_factory=list)
    parallel: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    indent: str = "    "

    def line(self, sequential: str, parallel: str | None = None, **faults: str) -> int:
        """Writes a line; each fault is the line that the parallel text has in its place."""
        number = len(self.sequential)
        parallel = sequential if parallel is None else parallel
        self.sequential.append(self.indent + sequential)
        self.parallel.append(self.indent + parallel)
        for kind, text in faults.items():
            if text != parallel:
                self.faults.append(Fault(kind.replace("_", " "), {number: text}))
        return number
