"""Do ranks that share a process record what processes record?

Judges Points of the reference models at every technique and up to 8 ranks with both launchers, and
compares the tensors that each rank recorded.  Sums of two terms have the same bits in any order, so
where no group has more than two ranks, all tensors must be equal bit for bit.  Elsewhere gloo adds
in another order; the verdict, with its measured allowance, must be a pass with both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _measure import finish, machine, quick, show

from pytest_trainsafe.config.settings import Settings
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.judges.joint import judge_case
from pytest_trainsafe.reference_models import gpt, llama, moe
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.program import resolve
from pytest_trainsafe.trace.reader import Trace

#: The program, the axes, the arguments, and whether every group has at most two ranks.
Row = tuple[Any, dict[str, Any], dict[str, Any], bool]

FOUR = {"layers": 4, "microbatches": 4}
OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True}

ROWS: Sequence[Row] = (
    (gpt, {"tp": 2}, {}, True),
    (gpt, {"tp": 2, "sp": True}, {"clip": 0.5}, True),
    (gpt, {"cp": 2}, {}, True),
    (gpt, {"cp": 2}, {"cp_method": "ring"}, True),
    (gpt, {"dp": 2}, {"bucket": 4096, "overlap_grad_reduce": True}, True),
    (gpt, {"dp": 2, "zero": 1}, OVERLAP, True),
    (gpt, {"pp": 2}, FOUR, True),
    (gpt, {"pp": 2, "vpp": 2}, FOUR, True),
    (gpt, {"tp": 2, "recompute": "full"}, {}, True),
    (gpt, {"tp": 2, "dp": 2, "sp": True}, {}, True),
    (gpt, {"tp": 2, "pp": 2, "dp": 2}, FOUR, True),
    (gpt, {"tp": 2, "cp": 2, "dp": 2}, {}, False),
    (gpt, {"tp": 4, "dp": 2, "zero": 1}, {}, False),
    (gpt, {"cp": 4, "tp": 2}, {"cp_method": "ring"}, False),
    (gpt, {"dp": 8}, {"microbatches": 8}, False),
    (llama, {"tp": 2, "sp": True}, {}, True),
    (llama, {"cp": 2}, {}, True),
    (llama, {"pp": 2}, FOUR, True),
    (llama, {"tp": 2, "cp": 2, "dp": 2}, {}, False),
    (moe, {"dp": 2, "ep": 2}, {}, True),
    (moe, {"tp": 2, "dp": 2, "ep": 2}, {}, True),
    (moe, {"dp": 4, "ep": 4, "tp": 2}, {"microbatches": 4}, False),
)


def main() -> None:
    rows = ROWS[::6] if quick(__doc__) else ROWS
    facts, figures = machine(), []
    with tempfile.TemporaryDirectory(prefix="trainsafe-equal-") as temporary:
        sessions = {
            name: Session(Settings(launcher=name, device="cpu"), Path(temporary, name))
            for name in ("threads", "warm")
        }
        try:
            for row in rows:
                figures.append(compared(sessions, row))
        finally:
            for session in sessions.values():
                session.close()
    names = ("program", "point", "threads", "warm", "tensors", "equal", "greatest", "as asked")
    show("Threads and processes", list(names), [[str(row[n]) for n in names] for row in figures])
    right = sum(bool(row["as asked"]) for row in figures)
    print(f"{right} of {len(figures)} as asked")
    finish("threads_equal", facts, {"points": figures})


def compared(sessions: dict[str, Session], row: Row) -> dict[str, object]:
    """One Point with both launchers: the verdicts, and how many tensors have the same bits."""
    program, axes, arguments, pairs = row
    given = {"layers": 2, **arguments}
    traces: dict[str, list[Trace]] = {}
    verdicts, seconds = {}, {}
    held = []
    for name, session in sessions.items():
        case = Case(Point.of(**axes), resolve(program.train), session.settings, given, given)
        reference, candidate = session.reference(case), session.candidate(case)
        began = time.perf_counter()
        verdicts[name] = judge_case(candidate, reference).verdict
        seconds[name] = time.perf_counter() - began
        traces[name] = [candidate.at(dtype) for dtype in case.rungs]
        held.append((session, candidate))
    total = equal = 0
    greatest = 0.0
    for ours, theirs in zip(traces["threads"], traces["warm"], strict=True):
        for one, other in zip(ours.ranks, theirs.ranks, strict=True):
            total += len(one.tensors.keys() | other.tensors.keys())
            for id in one.tensors.keys() & other.tensors.keys():
                a, b = one.tensors[id], other.tensors[id]
                if a.hash == b.hash and a.shape == b.shape:
                    equal += 1
                    continue
                x, y = (
                    trace.load(one.rank, event).double()
                    for trace, event in ((ours, a), (theirs, b))
                )
                greatest = max(greatest, float((x - y).norm() / y.norm().clamp_min(1e-300)))
    for session, candidate in held:
        session.discard(candidate)
    passed = set(verdicts.values()) == {"pass"}
    print(f"{program.__name__} {axes} {verdicts} {equal} of {total}", flush=True)
    return {
        "program": program.__name__.rpartition(".")[2],
        "point": f"{Point.of(**axes)} {' '.join(f'{k}={v}' for k, v in arguments.items())}".strip(),
        **verdicts,
        "tensors": total,
        "equal": equal,
        "greatest": f"{greatest:.1e}",
        "pairs": pairs,
        "as asked": passed and (equal == total or not pairs),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
