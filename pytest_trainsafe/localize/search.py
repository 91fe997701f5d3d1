"""Runs candidate and reference with everything between modules rewritten, and says who differs.

Called by the ladder after a rung failed.  Costs one Run of the candidate, two or three of the
reference (which are kept, as every reference is), and one of the candidate for each axis tried.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_trainsafe.compare.comparison import Comparison
from pytest_trainsafe.compare.judge import compare
from pytest_trainsafe.compare.rung import Rung
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.localize.axes import needed, parallel
from pytest_trainsafe.localize.blame import Fault, Stages, blame
from pytest_trainsafe.localize.initial import initial
from pytest_trainsafe.localize.scales import encode, scales
from pytest_trainsafe.localize.stages import cut_modules, ends, is_input
from pytest_trainsafe.localize.whole_steps import has_whole_steps_only, whole_steps
from pytest_trainsafe.localize.words import located
from pytest_trainsafe.report.located import Located
from pytest_trainsafe.trace.reader import Trace, TraceError
from pytest_trainsafe.trace.schema import INITIAL

if TYPE_CHECKING:
    from pytest_trainsafe.session import Run, Traces
    from pytest_trainsafe.sweep.point import Point


class Budget:
    """The seconds that localisations of one pytest process may still take."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, seconds: float) -> None:
        self.left = max(0.0, self.left - seconds)


def localize(
    candidate: Traces, reference: Traces, rung: Rung, failed: Comparison, budget: Budget
) -> Located | None:
    """Where the fault of a failed rung is; None where there is nothing to look for.

    Rows say why, where it could not be found.  `budget` pays for the time.
    """
    first = next(f for f in failed.findings if f.verdict == "fail")
    if first.where is None:
        return None
    if first.where.step == INITIAL:
        return initial(failed, rung.candidate)
    if has_whole_steps_only(rung.reference):
        return whole_steps(failed)
    if budget.left <= 0:
        return None
    began = time.perf_counter()
    try:
        return Search(candidate, reference, rung, budget.left).run()
    except TimeoutError:
        return _not_located("the time for it is used up (--trainsafe-localize)")
    except GroupFailure as failure:
        why = str(failure).partition("\n")[0]
        return _not_located(f"the program does not run with rewritten values ({why})")
    except TraceError as error:
        return _not_located(str(error).partition("\n")[0])
    finally:
        budget.spend(time.perf_counter() - began)


def _not_located(why: str) -> Located:
    return Located((("not localised", why),))


@dataclass
class Search:
    """One localisation of what differs in `rung`, within `seconds`.

    Raises TimeoutError, GroupFailure for a program that does not run with rewritten values, and
    TraceError for traces without values.
    """

    candidate: Traces
    reference: Traces
    rung: Rung
    seconds: float

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds
        self.dtype = self.rung.candidate.manifest.dtype
        whole = self.reference.in_full().at(self.dtype)
        self.rewrite = scales(whole, self.rung.candidate)

    def run(self) -> Located:
        """The report's rows."""
        if not self.rewrite:
            return _not_located("no activations were recorded that could be rewritten")
        rung = self.rewritten()
        comparison, faults = self.judge(rung)
        if not faults:
            return _not_located(
                "with what flows between modules rewritten nothing differs: the fault needs values "
                "that only training has, or a state that modules share"
            )
        program = self.candidate.case.program
        return located(faults, comparison, rung.candidate, program, self.axis(faults, rung))

    def rewritten(self) -> Rung:
        """The rung again, with what flows between modules rewritten."""
        runs = [
            self.candidate.rewritten(self.dtype, encode(self.rewrite)),
            self.reference.rewritten(self.dtype, encode(self.rewrite)),
            self.reference.rewritten(self.dtype, encode(self.rewrite), noise=True),
        ]
        if self.rung.shadow is not None:
            runs.append(self.reference.rewritten("float64", encode(self.rewrite)))
        candidate, reference, perturbed, *shadow = map(self._wait, runs)
        return Rung(
            dtype=self.rung.dtype,
            candidate=candidate,
            reference=reference,
            perturbed=perturbed,
            shadow=shadow[0] if shadow else None,
        )

    def judge(self, rung: Rung) -> tuple[Comparison, list[Fault]]:
        """What differs in a rewritten rung, and whose fault it is."""
        cut = cut_modules(rung.candidate) | cut_modules(rung.reference)
        stages = Stages(rung.candidate, frozenset(cut))
        rung = _with_ends(rung, cut)
        outputs = replace(
            rung, candidate=_outputs(rung.candidate), reference=_outputs(rung.reference)
        )
        comparison = compare(outputs, ())
        return comparison, blame(rung, comparison, self.rewrite, stages)

    def axis(self, faults: Sequence[Fault], rung: Rung) -> str:
        """Which axis the first fault needs; what there was no time for stays untold."""
        from pytest_trainsafe.sweep.axes import PARALLEL_AXES

        case = self.candidate.case

        def persists(point: Point) -> bool | None:
            run = self.candidate.rewritten(self.dtype, encode(self.rewrite), point=point)
            try:
                trace = self._wait(run)
            except (GroupFailure, TraceError, TimeoutError):
                return None
            _, found = self.judge(replace(rung, candidate=trace))
            return (faults[0].phase, faults[0].target) in {(f.phase, f.target) for f in found}

        axes = parallel(case.point, PARALLEL_AXES)
        if len(axes) == 1 and case.arguments == case.candidate_arguments:
            return f"{axes[0]}, the only one of this Point"
        return needed(case, axes, persists)[1]

    def _wait(self, future: Future[Run]) -> Trace:
        return future.result(max(0.0, self.until - time.monotonic())).trace


def _with_ends(rung: Rung, cut: set[str]) -> Rung:
    """The rung with the two ends of the containers that lie on several stages."""
    measures = [trace for trace in (rung.perturbed, rung.shadow) if trace is not None]
    candidate, reference, *folded = ends(cut, rung.candidate, rung.reference, *measures)
    others = iter(folded)
    return replace(
        rung,
        candidate=candidate,
        reference=reference,
        perturbed=next(others) if rung.perturbed is not None else None,
        shadow=next(others) if rung.shadow is not None else None,
    )


def _outputs(trace: Trace) -> Trace:
    """A trace without modules' inputs, which the judge knows nothing of."""
    ranks = [
        replace(rank, tensors={id: e for id, e in rank.tensors.items() if not is_input(id)})
        for rank in trace.ranks
    ]
    return Trace(trace.path, trace.manifest, ranks)
