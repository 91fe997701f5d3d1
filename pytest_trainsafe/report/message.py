"""The failure message: what differs and where it starts, the likely cause, how to rerun.

Plain text within about 100 columns, for terminals and CI logs alike.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trainsafe.compare.judge import Comparison
from pytest_trainsafe.finding import Finding

LABEL = 14
MOST_ALSO = 4

#: How the kinds are summed up in the line "not affected".
_GROUPS = {
    "forward activations": ("activation", "loss"),
    "activation gradients": ("activation_grad",),
    "micro-batch gradients": ("param_grad",),
    "main gradients": ("main_grad", "grad_norm"),
    "updates": ("update", "optimizer_state"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One rung as judged: its comparison, and what stays in doubt.

    `rounding` is the dtype whose rounding was allowed, and `cast` says where the program
    narrows to it ("float32 model.py:12") if that is not `dtype`.
    """

    dtype: str
    rounding: str
    comparison: Comparison
    doubts: list[Finding]
    accepted: list[Finding]
    cast: str = ""

    @property
    def failed(self) -> bool:
        return self.comparison.failed or bool(self.doubts)


def failure_message(program: str, point: str, judged: Sequence[Judged], nodeid: str) -> str:
    """The report of a test that failed, or could not say."""
    last = judged[-1]
    failing = [f for f in last.comparison.findings if f.verdict == "fail"]
    if failing:
        lines = [f"trainsafe: {program} at {point} differs from its single-device reference", ""]
        lines += _difference(failing, last)
    else:
        lines = [f"trainsafe: {program} at {point}: inconclusive, so not a pass", ""]
        for entry in judged:
            lines += _doubts(entry)
    lines += _context(judged)
    if nodeid:
        lines += _row("rerun", f"pytest {nodeid!r}")
    return "\n".join(lines)


def _difference(failing: Sequence[Finding], judged: Judged) -> list[str]:
    lead = _lead(failing)
    lines = []
    if lead.where is not None:
        lines += _row("starts at", f"{lead.where} · {judged.dtype}")
    lines += _row("" if lead.where is not None else "what", _size(lead), wrap=False)
    if lead.message:
        lines += _row("detail", lead.message)
    if lead.pattern is not None:
        lines += _row("pattern", lead.pattern.text)
        lines += _row("so", lead.pattern.cause)
    lines += _also(failing, lead)
    lines += _row("not affected", _unaffected(judged.comparison))
    if lead.source:
        lines += _row("look at", f"{_relative(lead.source)} (module class {lead.module_class})")
    return lines


def _lead(failing: Sequence[Finding]) -> Finding:
    """The first wrong tensor in dataflow; of its findings, the one that explains most."""
    first = [finding for finding in failing if finding.where == failing[0].where]
    return max(first, key=lambda f: (f.pattern is not None, f.judge == "compare"))


def _size(finding: Finding) -> str:
    if finding.error is None:
        return ""
    if finding.allowed is None:
        return f"error {finding.error:.1e}"
    if finding.allowed == 0 or finding.error == float("inf"):
        return "no rounding explains this"
    times = finding.error / finding.allowed
    return (
        f"error {finding.error:.1e}, rounding allows {finding.allowed:.1e}"
        f"    ({_times(times)} times too large)"
    )


def _times(times: float) -> str:
    if times < 100:
        return f"{times:.2g}"
    if times < 1e9:
        return f"{float(f'{times:.2g}'):,.0f}".replace(",", " ")
    return f"{times:.0e}"


def _also(failing: Sequence[Finding], lead: Finding) -> list[str]:
    """Other checks that broke at the same tensor, then the next tensors, each once."""
    lines: list[str] = []
    here = [f for f in failing if f.where == lead.where and f is not lead]
    for finding in here:
        if finding.check == "replicas" and lead.pattern and lead.pattern.name == "partial sum":
            lines += _row("also", "its replicas must be equal and are not: " + finding.message)
        elif finding.message:
            lines += _row("also", finding.message)
    shown = {lead.where}
    for finding in failing:
        if finding.where in shown or finding.where is None:
            continue
        shown.add(finding.where)
        if len(shown) <= MOST_ALSO:
            told = f": {finding.pattern.text}" if finding.pattern is not None else ""
            lines += _row("then", f"{finding.where}{told or ' ' + _size(finding)}")
    rest = len({f.where for f in failing}) - min(len(shown), MOST_ALSO)
    if rest > 0:
        lines += _row("", f"and {rest} more tensors")
    return lines


def _unaffected(comparison: Comparison) -> str:
    parts = []
    for name, kinds in _GROUPS.items():
        total = sum(comparison.compared[kind] for kind in kinds)
        wrong = sum(comparison.wrong[kind] for kind in kinds)
        if total:
            parts.append(f"{max(total - wrong, 0)} of {total} {name}")
    return ", ".join(parts)


def _doubts(judged: Judged) -> list[str]:
    lines = []
    for finding in judged.doubts:
        where = f"{finding.where}: " if finding.where is not None else ""
        lines += _row(finding.check, f"{where}{finding.message} ({judged.dtype})")
    if judged.doubts:
        names = ", ".join(dict.fromkeys(repr(finding.check) for finding in judged.doubts))
        lines += _row("to accept", f"accept=[{names}] in the marker, if this is meant")
    return lines


def _context(judged: Sequence[Judged]) -> list[str]:
    lines = []
    for entry in judged:
        if entry.rounding != entry.dtype:
            where = entry.cast.split(" ", 1)[-1]
            lines += _row(
                "precision",
                f"{entry.dtype} was judged by the rounding of {entry.rounding}: the program "
                f"narrows at {_relative(where)}",
            )
        for finding in entry.accepted:
            lines += _row("accepted", f"{finding.check}: {finding.message}")
    loosened = {e.reason: (e, id) for j in judged for id, e in j.comparison.loosened}
    for entry_loosen, id in loosened.values():
        lines += _row(
            "loosened",
            f"{entry_loosen.tensors} by {entry_loosen.factor:g} ({id.path} for one): "
            f"{entry_loosen.reason}",
        )
    return lines


def _row(label: str, text: str, wrap: bool = True) -> list[str]:
    if not text:
        return []
    pieces = textwrap.wrap(text, 84, break_long_words=False) if wrap else [text]
    pad = " " * (2 + LABEL)
    return [f"  {label:<{LABEL}}{pieces[0]}", *(pad + piece for piece in pieces[1:])]


def _relative(source: str) -> str:
    """A path relative to the working directory, where that is shorter."""
    path, _, line = source.rpartition(":")
    relative = os.path.relpath(path)
    return f"{relative if len(relative) < len(path) else path}:{line}"
