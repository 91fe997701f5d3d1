"""Says in words what was found to be at fault.  Called by `localize.search`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.json import decode

from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.finding import Finding
from pytest_trainsafe.localize.blame import PROGRAM, Fault, Phase
from pytest_trainsafe.record.reductions import Reduction
from pytest_trainsafe.report.located import Located
from pytest_trainsafe.report.places import relative
from pytest_trainsafe.sweep.program import Program
from pytest_trainsafe.trace.reader import Trace

#: Names told of one group of faults, and groups told of one failure.
MOST_NAMES = 3
MOST_GROUPS = 3

#: Reductions of the program that are told.
MOST_MADE = 4

_AGREES: dict[Phase, str] = {
    "data": "",
    "forward": "",
    "buffer": "the forward of every module agrees; ",
    "backward": "the forward of every module agrees; ",
    "loss": "every module agrees; ",
    "weights": "what flows between modules agrees, forward and backward; ",
    "reduction": "the forward and the backward of every module agree; ",
    "norm": "every gradient agrees; ",
    "optimizer": "every gradient agrees; ",
}


def located(
    faults: Sequence[Fault], comparison: Comparison, candidate: Trace, program: Program, axis: str
) -> Located:
    """The report's rows on some faults; `axis` is the sentence on the axis, or ""."""
    words = _Words(comparison, candidate, program.name)
    groups: dict[tuple[Phase, str, bool], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.phase, words.group(fault), fault.between), []).append(fault)
    rows = []
    first = faults[0].phase
    for number, group in enumerate(list(groups.values())[:MOST_GROUPS]):
        text = words.told(group)
        rows.append(("faulty", _AGREES[first] + text) if not number else ("and", text))
    if len(groups) > MOST_GROUPS:
        rows.append(("", f"and {len(groups) - MOST_GROUPS} more"))
    for number, text in enumerate(words.reductions(faults[0])):
        rows.append(("" if number else "reduced by", text))
    if axis:
        rows.append(("axis", axis))
    named = tuple((fault.phase, fault.target) for fault in faults)
    return Located(tuple(rows), *words.place(faults[0], program), named)


class _Words:
    def __init__(self, comparison: Comparison, candidate: Trace, program: str) -> None:
        self.comparison = comparison
        self.modules = {n: e for rank in candidate.ranks for n, e in rank.modules.items()}
        made = (text for rank in candidate.ranks for text in rank.note("reduction"))
        self.made = [decode(text, type=Reduction) for text in dict.fromkeys(made)]
        self.program = program

    def group(self, fault: Fault) -> str:
        """What faults of one phase are told together by: the class of a module."""
        if fault.phase in ("forward", "backward") and fault.target in self.modules:
            return self.modules[fault.target].cls
        return ""

    def told(self, group: Sequence[Fault]) -> str:
        fault = group[0]
        if fault.phase in ("forward", "backward"):
            return self.module_told(group)
        parameters = told_names([f.target for f in group], "parameter")
        match fault.phase:
            case "data":
                return (
                    f"what {self.program} gives its model is wrong, outside of the model: its data"
                )
            case "buffer":
                modules = told_names([f.target or "the root module" for f in group], "module")
                return f"what the forward of {modules} leaves in its buffers is wrong"
            case "loss":
                return f"the loss that {self.program} reports is wrong, outside of the model"
            case "norm":
                return "the gradient norm is wrong, of gradients that are right"
            case "weights":
                return f"the gradients are wrong of {parameters}{self.unsummed(group)}"
            case "reduction":
                return (
                    f"the gradient reduction is wrong of {parameters}: each micro-batch's gradient "
                    "agrees, what the optimizer is given does not"
                )
            case _:
                return f"the optimizer's step is wrong of {parameters}"

    def module_told(self, group: Sequence[Fault]) -> str:
        fault = group[0]
        if fault.handed is not None:
            what = "what" if fault.phase == "forward" else "the gradient that"
            return (
                f"{what} {self.program} hands on to rank {fault.handed} of pp is wrong, outside "
                "of the model: the stage that it comes from agrees, what arrives does not"
            )
        if fault.target == PROGRAM and fault.phase == "forward":
            return f"what {self.program} gives its model is wrong, outside of the model"
        if fault.target == PROGRAM:
            return (
                f"the loss that {self.program} differentiates is wrong, outside of the model: "
                "the gradient that reaches the model's output differs"
            )
        names = [f.target or "the root module" for f in group]
        of = told_names(names, "module")
        cls = self.module(fault)[0]
        named = f"{of} (class {cls})" if cls else of
        its = "its" if len(group) == 1 else "their"
        if fault.between:
            return (
                f"the {fault.phase} of the code in {named} between the modules that it runs: "
                "what these compute agrees, what it makes of it does not"
            )
        if fault.phase == "forward" and fault.unseen:
            return (
                f"the forward of {named}: {its} output does not agree; not all of {its} inputs "
                "could be compared"
            )
        if fault.phase == "forward":
            return f"the forward of {named}: {its} inputs agree, {its} output does not"
        return (
            f"the backward of {named}: the gradients that reach {its} output agree, those that "
            f"leave {its} inputs do not"
        )

    def unsummed(self, group: Sequence[Fault]) -> str:
        """That gradients are sums which nobody took, where all of them are."""
        patterns = {f.where.path: f.pattern for f in self.found() if f.where and f.pattern}
        axes = {p.axis for fault in group if (p := patterns.get(fault.target))}
        sums = {p.name for p in patterns.values()} == {"partial sum"}
        if sums and len(axes) == 1 and "" not in axes:
            return f": nothing sums them over {axes.pop()}, on which each rank has a term"
        return ""

    def reductions(self, fault: Fault) -> list[str]:
        """The reductions that the program does make, where one is wrong or missing."""
        if fault.phase not in ("reduction", "weights") or not self.made:
            return []
        told = [f"{made} at {relative(made.site)}{_called(made)}" for made in self.made]
        more = [f"and {len(told) - MOST_MADE} more"] if len(told) > MOST_MADE else []
        return told[:MOST_MADE] + more

    def found(self) -> Iterator[Finding]:
        return (f for f in self.comparison.findings if f.verdict == "fail")

    def place(self, fault: Fault, program: Program) -> tuple[str, str]:
        """Where to look, and what is there; of a step nothing is known."""
        if fault.target == PROGRAM:
            return _line_of(program), "the program"
        if fault.phase == "reduction":
            return self.reduction()
        cls, source = self.module(fault)
        if fault.phase not in ("forward", "buffer", "backward", "weights") or not source:
            return "", ""
        return source, f"module class {cls}"

    def reduction(self) -> tuple[str, str]:
        """The line of a reduction over the axis at which a gradient is wrong; not of what lacks."""
        patterns = [f.pattern for f in self.found() if f.pattern and f.where is not None]
        axes = {pattern.axis for pattern in patterns if pattern.name != "partial sum"}
        made = next((made for made in self.made if axes & {*made.axes}), None)
        return (made.site, f"{made}{_called(made)}") if made is not None else ("", "")

    def module(self, fault: Fault) -> tuple[str, str]:
        """The class and source of a fault's module, or of the nearest of the user's own."""
        path = fault.target
        while path != PROGRAM:
            event = self.modules.get(path)
            if event is not None and event.source and "/site-packages/" not in event.source:
                return event.cls, event.source
            if not path:
                break
            path = path.rpartition(".")[0]
        return "", ""


def _called(made: Reduction) -> str:
    return f", called at {relative(made.caller)}" if made.caller else ""


def _line_of(program: Program) -> str:
    """file:line of a program's function, the file of a script."""
    if not program.file:
        return program.path if program.script is not None else ""
    function = program.path.rpartition(":")[2].rpartition(".")[2]
    lines = Path(program.file).read_text(encoding="utf-8").splitlines()
    found = (n for n, line in enumerate(lines, 1) if line.lstrip().startswith(f"def {function}("))
    return f"{program.file}:{next(found, 1)}"


def told_names(names: Sequence[str], noun: str) -> str:
    """`a`, `2 modules: a and b`, or `7 modules: a, b, c and 4 more`."""
    if len(names) == 1:
        return names[0]
    shown = list(names[:MOST_NAMES])
    rest = len(names) - len(shown)
    last = f"{rest} more" if rest else shown.pop()
    return f"{len(names)} {noun}s: {', '.join(shown)} and {last}"
