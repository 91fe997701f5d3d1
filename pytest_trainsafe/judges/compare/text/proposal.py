"""The rows of a report that advise on annotations.  Called by `message`."""

from __future__ import annotations

import os

from pytest_trainsafe.annotations.extend import render
from pytest_trainsafe.core.code_files import relative
from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.compare.declarations.averaged import Means, hidden
from pytest_trainsafe.judges.compare.declarations.misaveraged import Misaveraged
from pytest_trainsafe.judges.compare.declarations.misdeclared import Misdeclared
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.declarations.undecided import alternative
from pytest_trainsafe.judges.compare.judgement import Advice
from pytest_trainsafe.sweep.point_summary import plural

#: A label, a text, and whether the text may be wrapped.
Row = tuple[str, str, bool]

#: The label of a tensor that no layout explains.
NO_LAYOUT = "no layout"


def advice_rows(advice: Advice) -> list[Row]:
    """The rows of all advice from judging a test in one dtype."""
    rows: list[Row] = []
    if advice.misaveraged is not None:
        rows += misaveraged_rows(advice.misaveraged)
    if advice.misdeclared is not None:
        rows += misdeclared_rows(advice.misdeclared)
    if advice.proposal is not None:
        rows += proposal_rows(advice.proposal, advice.written, advice.watched)
    return rows


def proposal_rows(proposal: Proposal, written: str = "", watched: str = "") -> list[Row]:
    """The rows on annotations to add: where, their text, and why.

    `written` says to which file they were written; "" if they were not.  `watched` is the
    "file:line" that calls ctx.watch.
    """
    rows: list[Row] = []
    if proposal.wanted:
        rows.append(("annotate", _where(proposal, written, watched), True))
        added = {"models": {proposal.model: proposal.wanted}} if proposal.model else proposal.wanted
        rows += [("", line, False) for line in render(added).splitlines()]
        rows.append(("because", _lead(proposal), True))
    if proposal.undecided:
        rows.append(("or", f"{alternative(proposal.undecided)}{_not_written(proposal)}", True))
    if proposal.means is not None:
        rows.append(("which says", _of_means(proposal.means), True))
    if proposal.unseen is not None:
        rows.append(("perhaps", hidden(proposal.unseen), True))
    if proposal.withheld:
        count, one = proposal.withheld, proposal.withheld == 1
        text = (
            f"{plural(count, 'tensor')} {'agrees' if one else 'agree'} if the ranks' values are "
            f"added up, and the tensors computed from {'it' if one else 'them'} are wrong: the "
            "program lacks a reduction, or does one twice. Mend the program; a layout of partial "
            "sums would hide the fault"
        )
        rows.append(("partial sums", text, True))
    if proposal.unexplained:
        rows.append((NO_LAYOUT, proposal.unexplained, True))
    return rows


def misdeclared_rows(wrong: Misdeclared) -> list[Row]:
    """The rows on annotations that contradict the recorded tensors."""
    rows: list[Row] = [
        ("" if number else "declared", text, True) for number, text in enumerate(wrong.sentences)
    ]
    if wrong.left is None:
        then = (
            "either this declaration or the code that shards the tensor is wrong; all other "
            "tensors agree"
        )
    else:
        then = f"with that layout, {_still_wrong(wrong.left)}"
    return [*rows, ("", then, True)]


def misaveraged_rows(wrong: Misaveraged) -> list[Row]:
    """A row that names wrongly declared averages over ranks, and averages that fit the tensors."""
    where = os.path.relpath(wrong.file) if wrong.file else "annotations= of ctx.watch"
    pairs = (
        ("gradients", wrong.gradients, wrong.fitting_gradients),
        ("loss", wrong.loss, wrong.fitting_loss),
    )
    said = " and ".join(_mean(name, own) for name, own, fits in pairs if own != fits)
    fits = " and ".join(_mean(name, fits) for name, said, fits in pairs if said != fits)
    count = wrong.tensors
    if not any(said for _, said, fits in pairs if said != fits):
        text = (
            f"with {fits} in {where} every tensor matches its reference; without it, "
            f"{plural(count, 'tensor')} differ{'' if count > 1 else 's'}, and the gradients after "
            "the reduction match in both cases. So either this declaration is missing, or the "
            "program divides each rank's loss by a wrong number"
        )
        return [("declared", text, True)]
    text = (
        f"{said}, in {where}, contradicts {count} tensor{'s' if count > 1 else ''}; with {fits} "
        "every tensor matches its reference, and the gradients after the reduction match in both "
        "cases. So either the declaration is wrong, or the program divides each rank's loss by a "
        "wrong number"
    )
    return [("declared", text, True)]


def _mean(name: str, axes: tuple[str, ...]) -> str:
    return f"{name}: {{mean: [{', '.join(axes)}]}}" if axes else f"no mean of {name}"


def _of_means(means: Means) -> str:
    if means.dropped:
        axes = " and ".join(means.dropped)
        who = means.wrapper or f"`gradients: {{mean: [{', '.join(means.dropped)}]}}`"
        then = "" if means.wrapper else "; remove the annotation"
        return (
            f"{who} is expected to average gradients over {axes}, but before the reduction the "
            f"gradients already equal those of the whole step{then}"
        )
    if not means.gradients:
        return (
            "the loss passed to ctx.loss is a mean over the rank's own share of the batch, like "
            "the loss from which the gradients are computed, so it is "
            f"{means.loss[0]} times that of the whole step"
        )
    text = (
        f"each rank's loss is a mean over the rank's own share of the batch, so its gradients are "
        f"{'·'.join(means.gradients)} times those of the whole step until the reduction averages "
        f"them over {' and '.join(means.gradients)}; if it sums them instead, a division is missing"
    )
    if means.alike:
        text += (
            f". The axis may also be {means.alike}, which has the same size here; a Point at which "
            "the sizes differ shows which it is"
        )
    return text


def _where(proposal: Proposal, written: str, watched: str) -> str:
    """What to do with the text of the annotations, which follows."""
    if written:
        return f"these annotations are missing; {written}"
    at = f" ({relative(watched)})" if watched else ""
    own = f"annotations= of ctx.watch{at}, a dictionary or the path of a file"
    where = os.path.relpath(proposal.file) if proposal.file else own
    run = ", or run with --trainsafe-annotate" if not proposal.undecided else ""
    return f"add this to {where}{run}"


def _not_written(proposal: Proposal) -> str:
    """What --trainsafe-annotate does not write, because it might hide a fault."""
    these = "this entry" if len(proposal.undecided) == 1 else "these entries"
    return f". --trainsafe-annotate does not write {these}"


def _lead(proposal: Proposal) -> str:
    if proposal.shaped:
        some = f"{proposal.shaped} parameters are sharded, as their shapes show, but were"
        if proposal.shaped == 1:
            some = "1 parameter is sharded, as its shape shows, but was"
        return (
            f"{some} initialized as if every rank held the whole tensor. If ctx.initialize and "
            "ctx.watch are given these annotations, the parameters start like the reference's; "
            "the next run shows which other annotations are missing"
        )
    count = proposal.tensors
    lack = "1 tensor lacks" if count == 1 else f"{count} tensors lack"
    return f"{lack} an annotation, or part of one: {_then(proposal)}"


def _then(proposal: Proposal) -> str:
    if proposal.unseen is not None:
        return "these annotations explain some of the failures, and means over ranks the others"
    if proposal.left is None:
        return "with these annotations, every tensor matches its reference"
    return f"these annotations explain some of the failures; {_still_wrong(proposal.left)}"


def _still_wrong(finding: Finding) -> str:
    """A clause on what is wrong with a layout, too."""
    if finding.where is None:
        return f"what remains: {finding.message}"
    return f"{finding.where} is still wrong"
