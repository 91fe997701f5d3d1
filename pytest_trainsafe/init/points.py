"""Tries a program on two ranks along each axis, and writes the layouts that are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_trainsafe.annotations.extend import render
from pytest_trainsafe.annotations.missing import HEAD
from pytest_trainsafe.annotations.write import write_annotations
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.init.axes import Axes
from pytest_trainsafe.init.checklist import AVERAGED, Check
from pytest_trainsafe.init.files import beside, create
from pytest_trainsafe.init.program import Found
from pytest_trainsafe.init.trial import Trial
from pytest_trainsafe.judges.compare.declarations.proposal import Proposal
from pytest_trainsafe.judges.compare.judgement import Advice, ladder_of
from pytest_trainsafe.judges.compare.text.proposal import advice_rows
from pytest_trainsafe.judges.joint import JointJudgement, judge_case
from pytest_trainsafe.judges.replay.rng.overwritten import overwritten
from pytest_trainsafe.launch import GroupFailure
from pytest_trainsafe.launch.failure import reason
from pytest_trainsafe.runs.session import Session
from pytest_trainsafe.sweep.case import Case
from pytest_trainsafe.sweep.product import cell_of
from pytest_trainsafe.trace.facts import Annotations

#: How often layouts are written and the Point tried again: those of parameters come first.
ROUNDS = 4

PAGE = "layouts.md#annotations-are-proposed"

DECLARATION = "this declaration, or correct the code that it describes"

PASS_THEM = (
    'write LAYOUTS = Path(__file__).with_name("layouts.yaml"), and annotations=LAYOUTS in '
    "ctx.initialize and ctx.watch"
)

#: Until ctx.initialize knows which parameters are cut, the outputs of modules are those of other
#: parameters, and no layout explains them.
MODULES_LATER = (
    "; then run the test with --trainsafe-annotate, which adds the layouts of modules: they show "
    "only when ctx.initialize knows those of the parameters"
)


@dataclass(slots=True)
class LayoutFile:
    """The annotation file of a program, which only grows if this option made it.

    `path` is the file that the program reads, or the one that it should read.  `read` is whether
    the program reads it, and `own` whether it was made in this run.  `wanted` has the text of
    entries that an existing file lacks.
    """

    path: Path
    read: bool
    own: bool = False
    wanted: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, trial: Trial, found: Found, folder: Path) -> LayoutFile:
        """The file that the program of a Trial reads; else layouts.yaml beside the test."""
        facts = trial.trace.ranks[0].events_of(Annotations)
        file = next((fact.file for fact in facts if fact.file), "")
        if file:
            return cls(Path(file), True, trial.made is not None)
        return cls(beside(found, folder) / "layouts.yaml", False)

    @property
    def name(self) -> str:
        """The path from the working directory."""
        return os.path.relpath(self.path)

    def add(self, proposal: Proposal) -> bool:
        """Adds the proposed entries; returns whether the program reads a file with new ones."""
        wanted = proposal.certain
        if not wanted:
            return False
        if not self.own and not self.read:
            self.own = not create(self.path, HEAD)
        if not self.own:
            entries = {"models": {proposal.model: wanted}} if proposal.model else wanted
            self.wanted += [render(entries)]
            return False
        before = self.path.read_bytes()
        write_annotations(wanted, str(self.path), "", "", proposal.model)
        return self.read and self.path.read_bytes() != before


def tried(
    session: Session,
    found: Found,
    trial: Trial,
    axes: Axes,
    config: pytest.Config,
    layouts: LayoutFile,
) -> Iterator[Check]:
    """A row for each axis that the program asks for, in the order of the sweep."""
    program = found.declaration.program

    def project_rule(point: Point, arguments: Mapping[str, object]) -> str | None:
        why: str | None = config.hook.pytest_trainsafe_valid_point(
            point=point, arguments=dict(arguments), config=config
        )
        return why

    rules = (*program.rules, project_rule)
    for axis in axes.asked:
        sizes = dict.fromkeys((axes.ranks.get(axis, axis), axis), 2)
        point = Point(tuple(sizes.items()), program.traits.mesh)
        cell = cell_of(found.declaration, point, session.settings, rules)
        unavailable = program.traits.unavailable
        why = cell.invalid or (unavailable(cell.case) if unavailable is not None else "")
        if why:
            yield Check("note", f"{axis}=2", f"not tried: {why}")
        else:
            check = _tried(session, cell.case, trial, f"{axis}=2", layouts)
            yield check if len(sizes) == 1 else replace(check, text=f"at {point}: {check.text}")


def _tried(session: Session, case: Case, trial: Trial, label: str, layouts: LayoutFile) -> Check:
    grown = False
    for number in range(ROUNDS):
        try:
            joint, hidden = _judged(session, case, trial, number)
        except GroupFailure as failure:
            return _ended(label, failure)
        proposal = _proposal(joint)
        if proposal is None or _is_mean(proposal, layouts) or not layouts.add(proposal):
            break
        grown = True
    check = _compared(label, joint, proposal, layouts, grown)
    mark = "note" if hidden and check.mark == "ok" else check.mark
    return replace(check, mark=mark, text="; ".join([check.text, *hidden]))


def _judged(
    session: Session, case: Case, trial: Trial, number: int
) -> tuple[JointJudgement, list[str]]:
    """Compares the Point with one device; `number` counts how often, as its files change.

    Also returns what ctx.initialize hides.
    """
    candidate = replace(session.candidate(case), repeat=trial.repeat + number)
    reference = replace(session.reference(case), repeat=trial.repeat)
    try:
        joint = judge_case(candidate, reference)
        return joint, overwritten(candidate.at(trial.dtype), reference.at(trial.dtype))
    finally:
        session.discard(candidate)


def _proposal(joint: JointJudgement) -> Proposal | None:
    ladder = ladder_of(joint.judgements)
    return ladder.rungs[-1].missing if ladder is not None and ladder.rungs else None


def _compared(
    label: str,
    joint: JointJudgement,
    proposal: Proposal | None,
    layouts: LayoutFile,
    grown: bool,
) -> Check:
    with_them = f", with the layouts that {layouts.name} now has" if grown else ""
    if joint.verdict == "pass":
        return Check("ok", label, f"trains like one device{with_them}")
    if proposal is None or not proposal.headline:
        text = f"{_difference(joint)}{with_them}"
        if advice := _declared(joint):
            means = advice.misaveraged
            verb = "add" if means is not None and means.only_adds else "change"
            todo = f"{verb} {DECLARATION}"
            said = " ".join(said for _, said, _ in advice_rows(replace(advice, proposal=None)))
            return Check("lacks", label, f"{text}; {said}", todo, "layouts.md#losses-and-gradients")
        todo = "run the test, whose report names the code at fault"
        return Check("lacks", label, text, todo, "running.md#finding-the-code-at-fault")
    if proposal.unseen is not None and not proposal.lacking:
        todo = "call ctx.before_clip(norm, limit) before gradients are clipped, and run this again"
        return Check("lacks", label, proposal.headline, todo, AVERAGED)
    if _is_mean(proposal, layouts):
        text = f"{proposal.headline}: with it, every tensor matches its reference"
        return Check("lacks", label, text, f"add {DECLARATION}", "layouts.md#losses-and-gradients")
    names = [name for _, name in proposal.lacking if name]
    text = proposal.headline + (f": {', '.join(names)}" if names else "")
    if layouts.own and not layouts.read:
        todo = f"{PASS_THEM}{MODULES_LATER if proposal.shaped else ''}"
        return Check("lacks", label, f"{text}; {layouts.name} has them", todo, PAGE)
    if layouts.own:
        return Check("lacks", label, text, "run the test with --trainsafe-annotate", PAGE)
    where = f"add the entries below to {layouts.name}"
    also = "" if layouts.read else f", and {PASS_THEM}"
    annotate = ", or run the test with --trainsafe-annotate" if layouts.read else ""
    return Check("lacks", label, text, f"{where}{also}{annotate}", PAGE)


def _is_mean(proposal: Proposal, layouts: LayoutFile) -> bool:
    """Whether only a mean over ranks is missing in annotations that are no file."""
    return proposal.means is not None and not proposal.lacking and not layouts.read


def _declared(joint: JointJudgement) -> Advice | None:
    """The advice that another declaration of means over ranks, or of layouts, explains the failure.

    None if there is no such advice.
    """
    ladder = ladder_of(joint.judgements)
    advice = ladder.rungs[-1].advice if ladder is not None and ladder.rungs else None
    if advice is None or (advice.misaveraged is None and advice.misdeclared is None):
        return None
    return advice


def _difference(joint: JointJudgement) -> str:
    """What differs, or cannot be decided, in one line."""
    ladder = ladder_of(joint.judgements)
    first = ladder.summary.get("first") if ladder is not None else None
    if first is not None and first.get("tensor"):
        because = first.get("cause") or first.get("pattern") or first.get("message", "")
        return f"differs from one device: {first['tensor']}" + (f"; {because}" if because else "")
    finding = next(iter(joint.findings), None)
    word = "differs from one device" if joint.verdict == "fail" else "is inconclusive"
    return f"{word}: {finding.message.splitlines()[0]}" if finding is not None else word


def _ended(label: str, failure: GroupFailure) -> Check:
    todo = "run the test, whose report has the tracebacks of the ranks"
    return Check("lacks", label, f"did not finish: {reason(failure.result)}", todo, "faults.md")
