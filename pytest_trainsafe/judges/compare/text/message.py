"""The failure message: what differs and where it starts, the likely cause, how to rerun.

Plain text of at most 100 columns, for terminals and CI logs; longer names and commands are not
broken.  The judgement names this package, and the assertions call it (`judges/own_text.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.comparison import Comparison
from pytest_trainsafe.judges.compare.factor import Factor, factor_text
from pytest_trainsafe.judges.compare.fault.located import Located
from pytest_trainsafe.judges.compare.judgement import (
    LadderJudgement,
    RungJudgement,
    lead_of,
)
from pytest_trainsafe.judges.compare.ladder.look_first import look_first
from pytest_trainsafe.judges.compare.text.doubts import doubt_rows
from pytest_trainsafe.judges.compare.text.mismatch import mismatch_text
from pytest_trainsafe.judges.compare.text.proposal import NO_LAYOUT, advice_rows
from pytest_trainsafe.judges.compare.text.unmatched import dead_rows, dead_words
from pytest_trainsafe.judges.compare.unmatched import apart
from pytest_trainsafe.report.rerun import NO_RUN, Rerun, rerun_rows, rerun_with
from pytest_trainsafe.report.rows import head, row, times_text

#: The most later tensors, and the most further findings on the first tensor, that are listed.
MAX_THEN = 3
MAX_ALSO = 4

#: The names of groups of kinds in the row "not affected".
_GROUPS = {
    "initial parameters": ("param", "master_param"),
    "inputs of the model": ("input",),
    "forward activations": ("activation", "decision"),
    "losses": ("loss",),
    "activation gradients": ("activation_grad",),
    "micro-batch gradients": ("param_grad",),
    "main gradients": ("unclipped_grad", "main_grad"),
    "gradient norms": ("grad_norm",),
    "updates and optimizer states": ("update", "optimizer_state"),
    "buffers": ("buffer",),
}


def message_of(judgement: LadderJudgement, title: str = "") -> str:
    """The report of a comparison, "" for a pass; `title` replaces the headline."""
    if judgement.verdict == "pass":
        return ""
    case = judgement.case
    return failure_message(
        judgement.program,
        judgement.point,
        judgement.rungs,
        case.nodeid if case is not None else "",
        judgement.left_out,
        rerun_with(case.settings) if case is not None else NO_RUN,
        judgement.located,
        title,
    )


def failure_message(
    program: str,
    point: str,
    judged: Sequence[RungJudgement],
    nodeid: str,
    left_out: Sequence[str] = (),
    rerun: Rerun = NO_RUN,
    located: Located | None = None,
    title: str = "",
) -> str:
    """The report of a failed or inconclusive test.

    `left_out` describes the rungs that were not judged.  `rerun` says how the test is run again.
    `located` is the result of the localisation.  `title` replaces the headline.
    """
    last = judged[-1]
    dead, failing = apart(last.comparison.findings)
    missing = last.missing
    if dead or failing:
        lines = _titled(title, f"trainsafe: {program} at {point}{_found(dead, failing, last)}")
        lines += dead_rows(dead, last)
        if missing is not None:
            lines += _advised(last)
            if last.rest is not None:
                _, left = apart(last.rest.comparison.findings)
                lines += _difference(left, last.rest, located)
        elif failing:
            lines += _difference(failing, last, located, blame=not (dead and last.explained))
            lead = lead_of(failing)
            lines += _advised(last, explained=lead.pattern is not None and bool(lead.pattern.cause))
        else:
            lines += row("not affected", _unaffected(last.comparison))
    else:
        lines = _titled(title, f"trainsafe: {program} at {point}: inconclusive, so not a pass")
        lines += doubt_rows(judged)
    lines += _context(judged)
    for text in left_out:
        lines += row("precision", text)
    lines += rerun_rows(nodeid, rerun)
    return "\n".join(lines)


def _found(dead: Sequence[Finding], failing: Sequence[Finding], judged: RungJudgement) -> str:
    """What the headline says after the Point: what differs, and which annotations are wrong.

    `dead` are the findings on annotations that match nothing, and `failing` the others that fail.
    """
    missing = judged.missing
    wrong = [dead_words(dead)] if dead else []
    wrong += [missing.headline] if missing is not None and missing.headline else []
    if missing is None and dead and failing and judged.explained:
        return f": {dead_words(dead)}, from which may follow what differs"
    if judged.rest is None and (missing is not None or not failing):
        return f": {', and '.join(wrong)}"
    return ", and ".join([f" differs from {_whom(judged)}", *wrong])


def _advised(judged: RungJudgement, explained: bool = False) -> list[str]:
    """The rows of advice; if a pattern explains the failure, not which layouts do not."""
    advice = (each for each in advice_rows(judged.advice) if not explained or each[0] != NO_LAYOUT)
    rows = (row(label, text, wrap) for label, text, wrap in advice)
    return [line for lines in rows for line in lines]


def _titled(title: str, headline: str) -> list[str]:
    return [*([title] if title else head(headline)), ""]


def _whom(judged: RungJudgement) -> str:
    alone = judged.reference == "a single device"
    return "its single-device reference" if alone else f"its reference at {judged.reference}"


def _difference(
    failing: Sequence[Finding],
    judged: RungJudgement,
    located: Located | None,
    blame: bool = True,
) -> list[str]:
    """The rows on what differs; `blame` is false if code is probably not at fault."""
    lead = lead_of(failing)
    lines = []
    if lead.where is None:
        lines += row("what", lead.message)
    else:
        lines += row("starts at", f"{lead.where} · {judged.dtype}")
        lines += row("", _size(lead), wrapped=False)
        lines += row("detail", lead.message)
        if lead.mismatch is not None:
            lines += row("elements", mismatch_text(lead.mismatch))
    if lead.pattern is not None:
        lines += row(_label(lead), lead.pattern.text)
        lines += row("so", lead.pattern.cause if blame else "")
    lines += _also(failing, lead)
    for hint in judged.hints:
        lines += row("also", hint.message)
    lines += _then(failing, lead, judged.comparison.factor)
    lines += row("not affected", _unaffected(judged.comparison))
    for label, text in () if located is None else located.rows:
        lines += row(label, text)
    source, what = look_first(located, failing, judged.explained)
    if source:
        own, *others = what
        lines += row("look at", f"{relative(source)} ({own})")
        for other in others:  # one place a line
            lines += row("", other)
    return lines


def _label(finding: Finding) -> str:
    assert finding.pattern is not None
    return "where" if finding.pattern.name == "confined" else "pattern"


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
        f"    ({times_text(times)} times too large)"
    )


def _also(failing: Sequence[Finding], lead: Finding) -> list[str]:
    """The rows on the other checks that failed at the same tensor as `lead`."""
    lines: list[str] = []
    here = [f for f in failing if f.where == lead.where and f is not lead and f.message]
    for finding in here[:MAX_ALSO]:
        lines += row("also", finding.message)
        if finding.pattern is not None and lead.pattern is None:
            lines += row(_label(finding), finding.pattern.text)
    if len(here) > MAX_ALSO:
        lines += row("", f"and {len(here) - MAX_ALSO} more")
    return lines


def _then(failing: Sequence[Finding], lead: Finding, factor: Factor | None) -> list[str]:
    """The rows on the wrong tensors after the first, in dataflow order, each once.

    Gradients that are wrong by a common factor get one row together.
    """
    shown = {None, lead.where}
    lines: list[str] = []
    reduced = lead.where is not None and lead.where.kind == "main_grad"
    if factor is not None and reduced and not _is_factor(lead):
        lines += row("scaled", factor_text(factor))
    if factor is not None and factor.clips:
        shown |= {*factor.scaled}
    later = {f.where: f for f in reversed(failing) if f.where not in shown}
    for where, finding in list(reversed(later.items()))[:MAX_THEN]:
        lines += row("then", str(where))
        if finding.pattern is not None:
            lines += row("", finding.pattern.text)
        elif finding.error is not None:
            lines += row("", _size(finding), wrapped=False)
        else:
            lines += row("", finding.message)
    if len(later) > MAX_THEN:
        more = len(later) - MAX_THEN
        lines += row("", f"and {more} more tensor{'s' if more > 1 else ''}")
    return lines


def _is_factor(finding: Finding) -> bool:
    return finding.pattern is not None and finding.pattern.name == "clip factor"


def _unaffected(comparison: Comparison) -> str:
    parts = []
    wrong = comparison.wrong
    for name, kinds in _GROUPS.items():
        total = sum(comparison.compared[kind] for kind in kinds)
        if total:
            parts.append(f"{total - sum(wrong[kind] for kind in kinds)} of {total} {name}")
    return ", ".join(parts)


def _context(judged: Sequence[RungJudgement]) -> list[str]:
    lines = row("compared", _compared(judged))
    for entry in judged:
        lines += row("precision", entry.widened)
        if entry.samples > 1:
            text = f"in {entry.dtype}, rounding was measured by {entry.samples} samples of noise"
            lines += row("rounding", text)
    for text in dict.fromkeys(text for entry in judged for text in entry.not_compared):
        lines += row("not compared", text.removeprefix("not compared: "))
    accepted = {f.check: f for entry in judged for f in entry.accepted}
    for finding in accepted.values():
        lines += row("accepted", f"{finding.check}: {finding.message}")
    loosened = {entry: id for each in judged for id, entry in each.comparison.loosened}
    for entry_loosen, id in loosened.items():
        lines += row(
            "loosened",
            f"{entry_loosen.tensors} by {entry_loosen.factor:g} (for example {id.path}): "
            f"{entry_loosen.reason}",
        )
    return lines


def _compared(judged: Sequence[RungJudgement]) -> str:
    """What was compared: `142 tensors in float64, 58 in float32, with a single device`."""
    counts = [sum(entry.comparison.compared.values()) for entry in judged]
    parts = [f"{counts[0]} tensor{'s' if counts[0] != 1 else ''} in {judged[0].dtype}"]
    parts += [f"{n} in {entry.dtype}" for n, entry in zip(counts[1:], judged[1:], strict=True)]
    return f"{', '.join(parts)}, with {judged[-1].reference}"
