"""The words on annotations that match nothing.  Called by `message`, `first_line` and the ladder.

They come before all else that failed, which may follow from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.declarations.proposal import counted, in_words
from pytest_trainsafe.judges.compare.judgement import RungJudgement, suspect
from pytest_trainsafe.judges.compare.unmatched import ENTRY
from pytest_trainsafe.report.rows import row
from pytest_trainsafe.sweep.point_summary import plural

#: The most annotations that are described one by one.
MAX_DEAD = 4


def dead_words(dead: Sequence[Finding]) -> str:
    """`the annotation `parameters: fcl.weight` matches nothing`, or how many match nothing."""
    if len(dead) == 1:
        return f"the annotation `{dict(dead[0].evidence)[ENTRY]}` matches nothing"
    return f"{len(dead)} annotations match nothing"


def dead_rows(dead: Sequence[Finding], judged: RungJudgement) -> list[str]:
    """The rows on annotations that match nothing: each, its line, and what follows from them."""
    lines: list[str] = []
    for finding in dead[:MAX_DEAD]:
        lines += row("what", finding.message)
        if finding.source:
            lines += row("look at", f"{relative(finding.source)} ({suspect(finding)})")
    if len(dead) > MAX_DEAD:
        lines += row("", f"and {plural(len(dead) - MAX_DEAD, 'more annotation')} like it")
    return lines + row("so", _consequence(dead, judged))


def _consequence(dead: Sequence[Finding], judged: RungJudgement) -> str:
    """What lacks a layout because an annotation matches nothing; "" if that is not known."""
    proposal = judged.advice.proposal
    if not dead or proposal is None or not proposal.misspelt:
        return ""
    parts = counted(proposal.misspelt)
    some = f"{in_words(parts)} {'has' if len(proposal.misspelt) == 1 else 'have'} no layout"
    if proposal.filled:
        return (
            f"{some}, so ctx.initialize filled each shard as if it were the whole tensor. With a "
            "corrected annotation the parameters start like the reference's, and the next run "
            "compares the rest"
        )
    if proposal.wanted or proposal.left is not None:
        return some
    return f"{some}; with the one that fits the values, every tensor matches its reference"
