"""Judges two recorded Runs: the assertion on traces, and a resume at another Point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_trainsafe.align.calls import renumbered
from pytest_trainsafe.config.checks import require_known
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.judges.compare.judgement import Advice, LadderJudgement
from pytest_trainsafe.judges.compare.ladder.one_rung import (
    compared,
    explained,
    judged_rung,
    of_tensors,
    rest_of,
)
from pytest_trainsafe.judges.compare.rung import RungTraces
from pytest_trainsafe.judges.loosen import Loosen
from pytest_trainsafe.judges.one_thread import one_thread
from pytest_trainsafe.runs.rounding import deciding_cast, rounding_of
from pytest_trainsafe.trace.reader import Trace, TraceError


def judge_pair(
    candidate: Trace | Path | str,
    reference: Trace | Path | str,
    perturbed: Trace | Path | str | None,
    shadow: Trace | Path | str | None,
    loosen: Sequence[Loosen],
    accept: Sequence[str],
) -> LadderJudgement:
    """Judge two recorded Runs, in the dtype of the reference.

    `perturbed` is the reference with noise of the size of rounding errors, `shadow` the reference
    at the rung that measures its own (float64); both measure rounding.  If both are None, only
    bitwise equal tensors pass.
    Raises TraceError for a trace that cannot be read, or whose dtype is not the expected one.
    """
    require_known(accept)
    opened = _opened(reference)
    dtype = opened.manifest.dtype
    measuring = rung_named(dtype).measured_by or dtype
    measured = _of_dtype(_opened(shadow), measuring, "shadow") if shadow else None
    rung = RungTraces(
        dtype=rounding_of(opened, measured),
        candidate=renumbered(_of_dtype(_opened(candidate), dtype, "candidate"), opened),
        reference=opened,
        perturbed=_of_dtype(_opened(perturbed), dtype, "perturbed") if perturbed else None,
        shadow=measured,
        cast=deciding_cast(opened, measured),
    )
    # A caller who passes no runs that measure rounding accepts that only equal values pass.
    unmeasured = {"measured"} if rung.perturbed is None and rung.shadow is None else set()
    comparison = compared(rung, loosen)
    if comparison.failed:
        comparison = explained(rung, comparison)
    judged = judged_rung(dtype, rung, comparison, {*accept, *unmeasured}, None)
    if comparison.failed:
        from pytest_trainsafe.judges.compare.declarations.propose import has_missing, propose

        wrong = of_tensors(comparison)
        with one_thread():
            proposal = propose(rung, wrong, loosen) if has_missing(rung, wrong) else None
        if proposal is not None:
            judged.advice = Advice(proposal=proposal)
            judged.explained = proposal.settles
            judged.rest = rest_of(dtype, proposal, {*accept, *unmeasured})
    return LadderJudgement(opened.manifest.program, str(rung.candidate.point), [judged])


def _of_dtype(trace: Trace, dtype: str, role: str) -> Trace:
    if trace.manifest.dtype != dtype:
        raise TraceError(
            f"the trace {trace.path}, passed as `{role}`, was recorded in {trace.manifest.dtype}, "
            f"but this comparison needs one in {dtype}. Record it in {dtype}."
        )
    return trace


def _opened(trace: Trace | Path | str) -> Trace:
    return trace if isinstance(trace, Trace) else Trace.open(trace)
